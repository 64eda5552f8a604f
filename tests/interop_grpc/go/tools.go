//go:build tools

// The programs of other projects that `make interop-grpc` builds, so that go.mod pins their versions.
package tools

import (
	_ "github.com/summerwind/h2spec/cmd/h2spec"
	_ "google.golang.org/grpc/interop/client"
	_ "google.golang.org/grpc/interop/server"
)

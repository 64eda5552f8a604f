// Unary calls of 1 KiB by grpc-go, some in flight at once: a client that is never slower than the server.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"flag"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
)

const (
	bodySize = 1024
	timeout  = 3 * time.Second
)

// bytesCodec sends messages as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (bytesCodec) Name() string { return "proto" }

// rocketmqMetadata is what RocketMQ's clients send with each call; the request id is new each time.
func rocketmqMetadata() metadata.MD {
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		log.Fatal(err)
	}
	return metadata.Pairs(
		"x-mq-client-id", "host@1234@0@abcdefgh",
		"x-mq-language", "GO",
		"x-mq-protocol", "v2",
		"x-mq-client-version", "5.1.2",
		"x-mq-date-time", time.Now().UTC().Format("20060102T150405Z"),
		"x-mq-request-id", hex.EncodeToString(id))
}

func main() {
	address := flag.String("address", "", "HOST:PORT of the server")
	method := flag.String("method", "", "/service/method that echoes")
	calls := flag.Int64("calls", 0, "calls in all")
	inFlight := flag.Int("in-flight", 64, "calls at once")
	asRocketmq := flag.Bool("rocketmq", false, "a deadline and RocketMQ's metadata in every call")
	flag.Parse()
	connection, err := grpc.NewClient(*address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})))
	if err != nil {
		log.Fatal(err)
	}
	body := make([]byte, bodySize)
	call := func() {
		ctx := context.Background()
		if *asRocketmq {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(metadata.NewOutgoingContext(ctx, rocketmqMetadata()), timeout)
			defer cancel()
		}
		var reply []byte
		if err := connection.Invoke(ctx, *method, &body, &reply); err != nil {
			log.Fatal(err)
		}
		if len(reply) != bodySize {
			log.Fatalf("a reply of %d bytes", len(reply))
		}
	}
	var left atomic.Int64
	left.Store(*calls)
	var workers sync.WaitGroup
	for range *inFlight {
		workers.Go(func() {
			for left.Add(-1) >= 0 {
				call()
			}
		})
	}
	workers.Wait()
}

// A server of grpc-go that answers each call with the same messages, whatever was asked: the most that a
// client can reach.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
)

// bytesCodec takes messages as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func (bytesCodec) Name() string { return "proto" }

// rule has the replies to a message of this method; of several rules the first whose text is in the message.
type rule struct {
	Method   string
	Contains string
	Replies  [][]byte // base64 in JSON
}

type rules map[string][]rule

func (known rules) replies(method string, message []byte) [][]byte {
	for _, one := range known[method] {
		if strings.Contains(string(message), one.Contains) {
			return one.Replies
		}
	}
	log.Printf("no reply to %s", method)
	return nil
}

// serve answers every message of a call: unary ones have one.
func (known rules) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)
	for {
		var message []byte
		if err := stream.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		for _, reply := range known.replies(method, message) {
			if err := stream.SendMsg(reply); err != nil {
				return err
			}
		}
	}
}

func read(path string) rules {
	text, err := os.ReadFile(path)
	if err != nil {
		log.Fatal(err)
	}
	var all []rule
	if err := json.Unmarshal(text, &all); err != nil {
		log.Fatal(err)
	}
	known := rules{}
	for _, one := range all {
		known[one.Method] = append(known[one.Method], one)
	}
	return known
}

func main() {
	address := flag.String("address", "", "HOST:PORT to listen on")
	path := flag.String("replies", "", "JSON: a list of Method, Contains, Replies")
	flag.Parse()
	known := read(*path)
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodec(bytesCodec{}), grpc.UnknownServiceHandler(known.serve))
	log.Fatal(server.Serve(listener))
}

package main

// Sends until a line comes, and receives until its input ends; the runner stops and starts brokers meanwhile.
//
// It prints `started`, then for each send `sent TOPIC BODY` or `refused TOPIC BODY WHY`, and `received TOPIC BODY`.
// Bodies of the FIFO topic are GROUP-NUMBER.

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
)

const (
	steadyGroups = 8
	steadyPause  = 200 * time.Millisecond
)

var (
	saying sync.Mutex
	silent atomic.Bool
)

func say(words ...any) {
	saying.Lock()
	defer saying.Unlock()
	fmt.Println(strings.ReplaceAll(strings.TrimSuffix(fmt.Sprintln(words...), "\n"), "\n", " "))
}

func sendAll(by rocketmq.Producer, topic string, ordered bool) {
	for number := 0; !silent.Load(); number++ {
		group := fmt.Sprintf("g%d", number%steadyGroups)
		body := fmt.Sprintf("%s-%d", group, number)
		one := message(topic, body, "steady")
		if ordered {
			one.SetMessageGroup(group)
		}
		if err := failure(by, one); err != nil {
			say("refused", topic, body, err)
		} else {
			say("sent", topic, body)
		}
		time.Sleep(steadyPause)
	}
}

func receiveAll(topic string) {
	from, err := rocketmq.NewSimpleConsumer(config("STEADY_"+topic, ""),
		rocketmq.WithAwaitDuration(5*time.Second),
		rocketmq.WithSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: rocketmq.SUB_ALL}))
	if err == nil {
		err = from.Start()
	}
	if err != nil {
		say("failed", err)
		return
	}
	say("started")
	for {
		found, err := from.Receive(ctx, 32, 30*time.Second)
		if err != nil {
			say("unreceived", topic, err)
			time.Sleep(steadyPause)
		}
		for _, one := range found {
			say("received", topic, string(one.GetBody()))
			if err := from.Ack(ctx, one); err != nil {
				say("unreceived", topic, err)
			}
		}
	}
}

func steady() {
	topics := []string{os.Getenv("TOPIC"), os.Getenv("FIFO_TOPIC")}
	by, err := rocketmq.NewProducer(config("", ""), rocketmq.WithTopics(topics...))
	if err == nil {
		err = by.Start()
	}
	if err != nil {
		say("failed", err)
		os.Exit(1)
	}
	say("started")
	for place, topic := range topics {
		go receiveAll(topic)
		go sendAll(by, topic, place == 1)
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		silent.Store(true)
	}
	os.Exit(0)
}

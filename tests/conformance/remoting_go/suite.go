package main

// The use of RocketMQ's Go client of the remoting protocol (rocketmq-client-go), against one broker, whose
// address is given as that of a nameserver.

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	normal      = "TROVE_REMOTING_GO_NORMAL"
	delay       = "TROVE_REMOTING_GO_DELAY"
	transaction = "TROVE_REMOTING_GO_TRANSACTION"
)

var ctx = context.Background()

func number(variable string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return value
	}
	return otherwise
}

// harness.go asks for it; only the client of gRPC has it.
func steady() { panic("this client has no steady run") }

func resolver() primitive.NsResolver {
	return primitive.NewPassthroughResolver([]string{os.Getenv("ENDPOINTS")})
}

func started(name string, more ...producer.Option) rocketmq.Producer {
	options := append([]producer.Option{
		producer.WithNsResolver(resolver()),
		producer.WithGroupName("producers-" + name + "-" + run),
		producer.WithInstanceName(name + run),
	}, more...)
	made, err := rocketmq.NewProducer(options...)
	check(err == nil, "new producer: %v", err)
	err = made.Start()
	check(err == nil, "start of a producer: %v", err)
	return made
}

// What a consumer was given.
type taken struct {
	sync.Mutex
	messages []*primitive.MessageExt
}

func (all *taken) add(more ...*primitive.MessageExt) int {
	all.Lock()
	defer all.Unlock()
	all.messages = append(all.messages, more...)
	return len(all.messages)
}

func (all *taken) bodies() []string {
	all.Lock()
	defer all.Unlock()
	found := []string{}
	for _, one := range all.messages {
		found = append(found, string(one.Body))
	}
	sort.Strings(found)
	return found
}

func (all *taken) await(count int, within time.Duration, what string) []string {
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if found := distinct(all.bodies()); len(found) >= count {
			return found
		}
	}
	check(false, "%s: %d of %d within %v", what, len(distinct(all.bodies())), count, within)
	return nil
}

func distinct(sorted []string) []string {
	found := []string{}
	for _, one := range sorted {
		if len(found) == 0 || found[len(found)-1] != one {
			found = append(found, one)
		}
	}
	return found
}

type handler func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error)

func (all *taken) handle(_ context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	all.add(more...)
	return consumer.ConsumeSuccess, nil
}

func subscribed(group, instance, topic string, selector consumer.MessageSelector, to handler, more ...consumer.Option) rocketmq.PushConsumer {
	options := append([]consumer.Option{
		consumer.WithNsResolver(resolver()),
		consumer.WithGroupName(group + "-" + run),
		consumer.WithInstance(instance + run),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, more...)
	made, err := rocketmq.NewPushConsumer(options...)
	check(err == nil, "new consumer: %v", err)
	err = made.Subscribe(topic, selector, to)
	check(err == nil, "subscribe: %v", err)
	err = made.Start()
	check(err == nil, "start of a consumer: %v", err)
	return made
}

func tagged(name string) consumer.MessageSelector {
	return consumer.MessageSelector{Type: consumer.TAG, Expression: name + run}
}

func routed(topic string) bool {
	made, err := admin.NewAdmin(admin.WithResolver(resolver()))
	check(err == nil, "new admin: %v", err)
	defer made.Close()
	all, err := made.FetchAllTopicList(ctx)
	check(err == nil, "topics: %v", err)
	for _, one := range all.TopicList {
		if one == topic {
			return true
		}
	}
	return false
}

func message(topic, name, body string) *primitive.Message {
	made := primitive.NewMessage(topic, []byte(body))
	return made.WithTag(name + run).WithKeys([]string{name + run + "-" + body})
}

func send(by rocketmq.Producer, messages ...*primitive.Message) *primitive.SendResult {
	sent, err := by.SendSync(ctx, messages...)
	check(err == nil, "send: %v", err)
	expect(sent.Status, primitive.SendOK, "the send")
	return sent
}

func numbers(count int) []string {
	found := []string{}
	for number := range count {
		found = append(found, fmt.Sprintf("%03d", number))
	}
	return found
}

func sendAndConsume() {
	by := started("plain")
	for _, body := range numbers(40) {
		send(by, message(normal, "plain", body))
	}
	var all taken
	subscribed("plain", "plain", normal, tagged("plain"), all.handle)
	expect(all.await(40, 40*time.Second, "messages consumed"), numbers(40), "the messages")
	expect(len(all.bodies()), 40, "deliveries")
}

func sendAsync() {
	by := started("async")
	failed := make(chan error, 300)
	for _, body := range numbers(300) {
		err := by.SendAsync(ctx, func(_ context.Context, _ *primitive.SendResult, err error) { failed <- err },
			message(normal, "async", body))
		check(err == nil, "send: %v", err)
	}
	for range 300 {
		err := <-failed
		check(err == nil, "send: %v", err)
	}
	var all taken
	subscribed("async", "async", normal, tagged("async"), all.handle)
	expect(all.await(300, 40*time.Second, "messages consumed"), numbers(300), "the messages")
}

func sendOneWay() {
	by := started("oneway")
	for _, body := range numbers(20) {
		err := by.SendOneWay(ctx, message(normal, "oneway", body))
		check(err == nil, "send: %v", err)
	}
	var all taken
	subscribed("oneway", "oneway", normal, tagged("oneway"), all.handle)
	expect(all.await(20, 40*time.Second, "messages consumed"), numbers(20), "the messages")
}

func sendBatch() {
	by := started("batch")
	batch := []*primitive.Message{}
	for _, body := range numbers(30) {
		batch = append(batch, message(normal, "batch", body))
	}
	send(by, batch...)
	var all taken
	subscribed("batch", "batch", normal, tagged("batch"), all.handle)
	expect(all.await(30, 40*time.Second, "messages consumed"), numbers(30), "the messages")
}

func compressed() {
	by := started("large")
	body := fmt.Sprintf("%050000d", 7)
	large := message(normal, "large", "7")
	large.Body = []byte(body)
	send(by, large)
	var all taken
	subscribed("large", "large", normal, tagged("large"), all.handle)
	expect(all.await(1, 40*time.Second, "the message is consumed"), []string{body}, "the body")
}

func sqlFilter() {
	by := started("sql")
	for _, body := range numbers(10) {
		one := message(normal, "sql", body)
		one.WithProperty("n"+run, body)
		send(by, one)
	}
	var all taken
	selector := consumer.MessageSelector{Type: consumer.SQL92, Expression: "n" + run + " IN ('007', '008')"}
	subscribed("sql", "sql", normal, selector, all.handle)
	expect(all.await(2, 40*time.Second, "messages consumed"), []string{"007", "008"}, "those that match")
}

func delayLevel() {
	by := started("delay")
	var all taken
	arrived := make(chan time.Time, 1)
	subscribed("delay", "delay", delay, tagged("delay"), func(_ context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		if all.add(more...) == 1 {
			arrived <- time.Now()
		}
		return consumer.ConsumeSuccess, nil
	})
	began := time.Now()
	send(by, message(delay, "delay", "later").WithDelayTimeLevel(2)) // 5 s
	all.await(1, 40*time.Second, "the message is consumed")
	after := (<-arrived).Sub(began)
	check(after >= 4900*time.Millisecond, "after %v, not before 5 s", after)
}

func orderly() {
	by := started("ordered", producer.WithQueueSelector(producer.NewHashQueueSelector()))
	for place, body := range numbers(60) {
		send(by, message(normal, "ordered", body).WithShardingKey(strconv.Itoa(place%3)))
	}
	var all taken
	subscribed("ordered", "ordered", normal, tagged("ordered"), all.handle, consumer.WithConsumerOrder(true))
	expect(all.await(60, 60*time.Second, "messages consumed"), numbers(60), "the messages")
	all.Lock()
	defer all.Unlock()
	last := map[string]string{}
	for _, one := range all.messages {
		key := one.GetShardingKey()
		check(last[key] < string(one.Body), "key %s: %s after %s", key, one.Body, last[key])
		last[key] = string(one.Body)
	}
	expect(len(last), 3, "keys")
}

func broadcasting() {
	var first, second taken
	model := consumer.WithConsumerModel(consumer.BroadCasting)
	subscribed("broadcast", "broadcast1", normal, tagged("broadcast"), first.handle, model)
	subscribed("broadcast", "broadcast2", normal, tagged("broadcast"), second.handle, model)
	time.Sleep(3 * time.Second)
	by := started("broadcast")
	for _, body := range numbers(10) {
		send(by, message(normal, "broadcast", body))
	}
	expect(first.await(10, 40*time.Second, "messages of the first"), numbers(10), "the first")
	expect(second.await(10, 40*time.Second, "messages of the second"), numbers(10), "the second")
}

func twoMembers() {
	var first, second, both taken
	share := func(one *taken) handler {
		return func(_ context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			one.add(more...)
			both.add(more...)
			return consumer.ConsumeSuccess, nil
		}
	}
	leaves := subscribed("shared", "shared1", normal, tagged("shared"), share(&first))
	subscribed("shared", "shared2", normal, tagged("shared"), share(&second))
	time.Sleep(5 * time.Second)
	by := started("shared")
	for _, body := range numbers(80) {
		send(by, message(normal, "shared", body))
	}
	expect(both.await(80, 40*time.Second, "messages consumed"), numbers(80), "the messages")
	check(len(first.bodies()) > 0 && len(second.bodies()) > 0, "both take a part")
	err := leaves.Shutdown() // this client sends no word of it: its connection ends
	check(err == nil, "shutdown: %v", err)
	for place := 80; place < 120; place++ {
		send(by, message(normal, "shared", fmt.Sprintf("%03d", place)))
	}
	expect(both.await(120, 40*time.Second, "messages consumed by the other one"), numbers(120), "the messages")
}

func retries() {
	send(started("failing"), message(normal, "failing", "one"))
	var all taken
	subscribed("failing", "failing", normal, tagged("failing"), func(given context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		concurrent, _ := primitive.GetConcurrentlyCtx(given)
		concurrent.DelayLevelWhenNextConsume = 1
		if all.add(more...) < 3 {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	})
	for end := time.Now().Add(60 * time.Second); len(all.bodies()) < 3 && time.Now().Before(end); {
		time.Sleep(50 * time.Millisecond)
	}
	all.Lock()
	defer all.Unlock()
	attempts := []int32{}
	for _, one := range all.messages {
		attempts = append(attempts, one.ReconsumeTimes)
		expect(one.Topic, normal, "the topic that the listener sees")
	}
	expect(attempts, []int32{0, 1, 2}, "the attempts")
}

func deadLetter() {
	send(started("dying"), message(normal, "dying", "one"))
	subscribed("dying", "dying", normal, tagged("dying"), func(given context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		concurrent, _ := primitive.GetConcurrentlyCtx(given)
		concurrent.DelayLevelWhenNextConsume = 1
		return consumer.ConsumeRetryLater, nil
	}, consumer.WithMaxReconsumeTimes(1))
	var letters taken
	group := "%DLQ%dying-" + run
	for end := time.Now().Add(60 * time.Second); !routed(group) && time.Now().Before(end); {
		time.Sleep(200 * time.Millisecond) // this client's consumer does not start without the topic
	}
	any := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	subscribed("letters", "letters", group, any, letters.handle)
	expect(letters.await(1, 80*time.Second, "the dead letter"), []string{"one"}, "the letter")
}

type verdicts struct {
	first, checked map[string]primitive.LocalTransactionState
}

func (given verdicts) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	return given.first[string(one.Body)]
}

func (given verdicts) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	return given.checked[string(one.Body)]
}

func transactions() {
	listener := verdicts{
		map[string]primitive.LocalTransactionState{
			"committed":   primitive.CommitMessageState,
			"rolled back": primitive.RollbackMessageState,
			"later":       primitive.UnknowState,
		},
		map[string]primitive.LocalTransactionState{"later": primitive.CommitMessageState},
	}
	by, err := rocketmq.NewTransactionProducer(listener, producer.WithNsResolver(resolver()),
		producer.WithGroupName("producers-deals-"+run), producer.WithInstanceName("deals"+run))
	check(err == nil, "new producer: %v", err)
	err = by.Start()
	check(err == nil, "start of a producer: %v", err)
	for body := range listener.first {
		_, err := by.SendMessageInTransaction(ctx, message(transaction, "deals", body))
		check(err == nil, "send of %s: %v", body, err)
	}
	var all taken
	subscribed("deals", "deals", transaction, tagged("deals"), all.handle)
	expect(all.await(2, 80*time.Second, "both that are committed"), []string{"committed", "later"}, "the messages")
}

func requestReply() {
	by, replier := started("request"), started("reply")
	subscribed("request", "request", normal, tagged("request"), func(_ context.Context, more ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, one := range more {
			reply, err := consumer.CreateReplyMessage(one, nil)
			if err == nil {
				reply.Body = append([]byte("re: "), one.Body...) // v2.1.2 does not take it from its argument
				_, err = replier.SendSync(ctx, reply)
			}
			if err != nil {
				return consumer.ConsumeRetryLater, nil
			}
		}
		return consumer.ConsumeSuccess, nil
	})
	reply, err := by.Request(ctx, 30*time.Second, message(normal, "request", "ask"))
	check(err == nil, "request: %v", err)
	expect(string(reply.Body), "re: ask", "the reply")
}

func pullConsumer() {
	by := started("pulled")
	for _, body := range numbers(30) {
		send(by, message(normal, "pulled", body))
	}
	from, err := rocketmq.NewPullConsumer(consumer.WithNsResolver(resolver()),
		consumer.WithGroupName("pulled-"+run), consumer.WithInstance("pulled"+run),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset))
	check(err == nil, "new consumer: %v", err)
	err = from.Subscribe(normal, tagged("pulled"))
	check(err == nil, "subscribe: %v", err)
	err = from.Start()
	check(err == nil, "start of a consumer: %v", err)
	var all taken
	for end := time.Now().Add(60 * time.Second); len(all.bodies()) < 30 && time.Now().Before(end); {
		found, err := from.Poll(ctx, 2*time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		check(err == nil, "poll: %v", err)
		all.add(found.GetMsgList()...)
		from.ACK(ctx, found, consumer.ConsumeSuccess)
	}
	expect(all.await(30, time.Second, "messages polled"), numbers(30), "the messages")
}

func misuse() {
	by := started("wrong", producer.WithRetry(1))
	_, err := by.SendSync(ctx, message("TROVE_REMOTING_GO_ABSENT", "wrong", "one"))
	refused(err, "an absent topic")
	send(by, message(normal, "wrong", "one"))
}

func init() {
	rlog.SetLogLevel("fatal")
	define("send_and_consume", sendAndConsume)
	define("send_async", sendAsync)
	define("send_one_way", sendOneWay)
	define("send_batch", sendBatch)
	define("compressed", compressed)
	define("sql_filter", sqlFilter)
	define("delay_level", delayLevel)
	define("orderly", orderly)
	define("broadcasting", broadcasting)
	define("two_members", twoMembers)
	define("retries", retries)
	define("dead_letter", deadLetter)
	define("transaction", transactions)
	define("request_reply", requestReply)
	define("pull_consumer", pullConsumer)
	define("misuse", misuse)
}

package main

// The use of RocketMQ 5's official Go client, against one broker or several. It speaks TLS and nothing else.
//
// A receive asks the next broker, and waits there for 5 s also while another one has messages. So with several
// brokers (BROKERS) the time to receive in is longer, and each is asked for more messages. The same messages
// must arrive.

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	rocketmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	normal      = "TROVE_GO_NORMAL"
	fifo        = "TROVE_GO_FIFO"
	delay       = "TROVE_GO_DELAY"
	transaction = "TROVE_GO_TRANSACTION"
	mixed       = "TROVE_GO_MIXED"
	bodySizeMax = 2<<20 - 4<<10 // the client's own limit is of a request
)

var ctx = context.Background()

var brokers = number("BROKERS", 1)

func number(variable string, otherwise int) int {
	if value, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return value
	}
	return otherwise
}

func config(group, secret string) *rocketmq.Config {
	if secret == "" {
		secret = os.Getenv("SECRET_KEY")
	}
	return &rocketmq.Config{
		Endpoint:      os.Getenv("ENDPOINTS"),
		ConsumerGroup: group,
		Credentials: &credentials.SessionCredentials{
			AccessKey: os.Getenv("ACCESS_KEY"), AccessSecret: secret,
		},
	}
}

func producer(checker func(*rocketmq.MessageView) rocketmq.TransactionResolution, topics ...string) rocketmq.Producer {
	options := []rocketmq.ProducerOption{rocketmq.WithTopics(topics...), rocketmq.WithMaxAttempts(1)}
	if checker != nil {
		options = append(options, rocketmq.WithTransactionChecker(&rocketmq.TransactionChecker{Check: checker}))
	}
	made, err := rocketmq.NewProducer(config("", ""), options...)
	check(err == nil, "new producer: %v", err)
	err = made.Start()
	check(err == nil, "start of a producer: %v", err)
	return made
}

// A simple consumer that has its settings and a position.
func consumer(group, topic string, expression *rocketmq.FilterExpression) rocketmq.SimpleConsumer {
	made, err := rocketmq.NewSimpleConsumer(config("TROVE_GO_"+group, ""),
		rocketmq.WithAwaitDuration(5*time.Second),
		rocketmq.WithSubscriptionExpressions(map[string]*rocketmq.FilterExpression{topic: expression}))
	check(err == nil, "new consumer: %v", err)
	err = made.Start()
	check(err == nil, "start of a consumer: %v", err)
	for range brokers {
		receive(made, 15*time.Second)
	}
	return made
}

func tagged(tag string) *rocketmq.FilterExpression { return rocketmq.NewFilterExpression(tag) }

// This client has an error where no message came.
func receive(from rocketmq.SimpleConsumer, invisible time.Duration) []*rocketmq.MessageView {
	found, err := from.Receive(ctx, 16, invisible)
	if status, known := rocketmq.AsErrRpcStatus(err); known {
		check(v2.Code(status.GetCode()) == v2.Code_MESSAGE_NOT_FOUND, "receive: %v", err)
	}
	return found
}

// Up to count messages; of those with a time of their own none is acknowledged.
func take(from rocketmq.SimpleConsumer, count int, within time.Duration, invisible time.Duration) []*rocketmq.MessageView {
	var taken []*rocketmq.MessageView
	acknowledge := invisible == 0
	if acknowledge {
		invisible = 20 * time.Second
	}
	for end := time.Now().Add(within * time.Duration(brokers)); len(taken) < count && time.Now().Before(end); {
		for _, message := range receive(from, invisible) {
			if acknowledge {
				err := from.Ack(ctx, message)
				check(err == nil, "acknowledgement: %v", err)
			}
			taken = append(taken, message)
		}
	}
	return taken
}

func message(topic, body, tag string) *rocketmq.Message {
	made := &rocketmq.Message{Topic: topic, Body: []byte(body)}
	if tag != "" {
		made.SetTag(tag)
	}
	return made
}

func send(by rocketmq.Producer, one *rocketmq.Message) *rocketmq.SendReceipt {
	receipts, err := by.Send(ctx, one)
	check(err == nil, "send: %v", err)
	expect(len(receipts), 1, "receipts")
	return receipts[0]
}

func failure(by rocketmq.Producer, one *rocketmq.Message) error {
	_, err := by.Send(ctx, one)
	return err
}

func bodies(messages []*rocketmq.MessageView) []string {
	found := []string{}
	for _, one := range messages {
		found = append(found, string(one.GetBody()))
	}
	sort.Strings(found)
	return found
}

func numbers(count int) []string {
	found := []string{}
	for number := range count {
		found = append(found, fmt.Sprintf("%03d", number))
	}
	return found
}

func init() {
	define("what_is_sent_is_received_once_and_gone_when_acknowledged", func() {
		tag := "plain" + run
		from, by := consumer("plain", normal, tagged(tag)), producer(nil, normal)
		sent := map[string]string{}
		for _, body := range numbers(20) {
			sent[send(by, message(normal, body, tag)).MessageID] = body
		}
		found := map[string]string{}
		for _, one := range take(from, 20, 40*time.Second, 0) {
			found[one.GetMessageId()] = string(one.GetBody())
			expect(one.GetDeliveryAttempt(), int32(1), "attempt")
		}
		expect(found, sent, "messages")
		for range 4 * brokers {
			expect(len(receive(from, 15*time.Second)), 0, "messages left")
		}
	})
	define("keys_tag_and_properties_come_back_as_they_were", func() {
		tag := "carried" + run
		from := consumer("carried", normal, tagged(tag))
		one := message(normal, "Grüße, 世界 🌍", tag)
		one.SetKeys("k1"+run, "k2")
		properties := map[string]string{"country": "Österreich", "日付": "十一月", "json": `{"a":[1,2]}`}
		for name, value := range properties {
			one.AddProperty(name, value)
		}
		receipt := send(producer(nil, normal), one)
		found := take(from, 1, 35*time.Second, 0)
		expect(len(found), 1, "messages")
		expect(found[0].GetMessageId(), receipt.MessageID, "message id")
		expect(string(found[0].GetBody()), "Grüße, 世界 🌍", "body")
		expect(*found[0].GetTag(), tag, "tag")
		expect(found[0].GetKeys(), []string{"k1" + run, "k2"}, "keys")
		expect(found[0].GetProperties(), properties, "properties")
	})
	define("sends_in_flight_together_all_arrive", func() {
		tag := "together" + run
		from, by := consumer("together", normal, tagged(tag)), producer(nil, normal)
		var sending sync.WaitGroup
		failed := make(chan error, 100)
		for _, body := range numbers(100) {
			sending.Add(1)
			by.SendAsync(ctx, message(normal, body, tag), func(_ context.Context, _ []*rocketmq.SendReceipt, err error) {
				failed <- err
				sending.Done()
			})
		}
		sending.Wait()
		for range 100 {
			err := <-failed
			check(err == nil, "send: %v", err)
		}
		expect(bodies(take(from, 100, 50*time.Second, 0)), numbers(100), "bodies")
	})
	define("bodies_up_to_the_clients_limit_are_taken", func() {
		tag := "large" + run
		from, by := consumer("large", normal, tagged(tag)), producer(nil, normal)
		body := make([]byte, bodySizeMax)
		for place := range body {
			body[place] = byte(place)
		}
		send(by, &rocketmq.Message{Topic: normal, Body: body, Tag: &tag})
		found := take(from, 1, 35*time.Second, 0)
		expect(len(found), 1, "messages")
		check(string(found[0].GetBody()) == string(body), "the body is another one")
	})
	define("topics_that_are_unknown_or_illegal_are_refused", func() {
		by := producer(nil, normal)
		refused(failure(by, message("TROVE_NONE_"+run, "x", "")), "an unknown topic")
		refused(failure(by, message("not a topic", "x", "")), "an illegal topic")
	})
	define("a_message_of_another_kind_than_its_topic_is_refused", func() {
		by := producer(nil, normal, fifo)
		refused(failure(by, message(fifo, "no message group", "")), "NORMAL in a FIFO topic")
		grouped := message(normal, "x", "")
		grouped.SetMessageGroup("g")
		refused(failure(by, grouped), "FIFO in a NORMAL topic")
	})
	define("a_mixed_topic_takes_every_kind", func() {
		tag := "mixed" + run
		from, by := consumer("mixed", mixed, tagged(tag)), producer(nil, mixed)
		ordered, delayed := message(mixed, "ordered", tag), message(mixed, "delayed", tag)
		ordered.SetMessageGroup("g")
		delayed.SetDelayTimestamp(time.Now().Add(3 * time.Second))
		for _, one := range []*rocketmq.Message{message(mixed, "normal", tag), ordered, delayed} {
			send(by, one)
		}
		expect(bodies(take(from, 3, 40*time.Second, 0)), []string{"delayed", "normal", "ordered"}, "bodies")
	})
	define("a_tag_expression_chooses", func() {
		names := []string{"one" + run, "two" + run, "other" + run}
		from, by := consumer("tags", normal, tagged(names[0]+" || "+names[1])), producer(nil, normal)
		wanted := []string{}
		for number, body := range numbers(15) {
			send(by, message(normal, body, names[number%3]))
			if number%3 < 2 {
				wanted = append(wanted, body)
			}
		}
		expect(bodies(take(from, 10, 40*time.Second, 0)), wanted, "bodies")
	})
	define("an_sql_condition_chooses", func() {
		condition := fmt.Sprintf("run = '%s' AND weight BETWEEN 10 AND 20", run)
		from := consumer("sql", normal, rocketmq.NewFilterExpressionWithType(condition, rocketmq.SQL92))
		by := producer(nil, normal)
		for _, weight := range []string{"15", "20.5", "20"} {
			one := message(normal, weight, "kept")
			one.AddProperty("run", run)
			one.AddProperty("weight", weight)
			send(by, one)
		}
		expect(bodies(take(from, 2, 30*time.Second, 0)), []string{"15", "20"}, "bodies")
	})
	define("a_message_that_is_not_acknowledged_comes_again", func() {
		tag := "again" + run
		from := consumer("again", normal, tagged(tag))
		receipt := send(producer(nil, normal), message(normal, "again", tag))
		first := take(from, 1, 35*time.Second, 10*time.Second)
		taken := time.Now()
		expect(len(first), 1, "messages")
		second := take(from, 1, 45*time.Second, 0)
		expect(len(second), 1, "messages again")
		expect([]string{first[0].GetMessageId(), second[0].GetMessageId()},
			[]string{receipt.MessageID, receipt.MessageID}, "message ids")
		expect(second[0].GetDeliveryAttempt(), int32(2), "attempt")
		check(time.Since(taken) > 8*time.Second, "it came before its time was over")
	})
	define("the_invisible_duration_can_be_changed", func() {
		tag := "changed" + run
		from := consumer("changed", normal, tagged(tag))
		send(producer(nil, normal), message(normal, "changed", tag))
		first := take(from, 1, 35*time.Second, 120*time.Second)
		expect(len(first), 1, "messages")
		err := from.ChangeInvisibleDuration(first[0], 10*time.Second)
		check(err == nil, "change: %v", err)
		again := take(from, 1, 45*time.Second, 0)
		expect(bodies(again), []string{"changed"}, "redelivered")
	})
	define("messages_of_a_message_group_come_in_their_order", func() {
		tag := "ordered" + run
		from, by := consumer("ordered", fifo, tagged(tag)), producer(nil, fifo)
		for _, body := range numbers(10) {
			one := message(fifo, body, tag)
			one.SetMessageGroup("group" + run)
			send(by, one)
		}
		found := []string{}
		for _, one := range take(from, 10, 60*time.Second, 0) {
			found = append(found, string(one.GetBody()))
		}
		expect(found, numbers(10), "order")
	})
	define("a_delayed_message_comes_at_its_time", func() {
		tag := "delayed" + run
		from, by := consumer("delayed", delay, tagged(tag)), producer(nil, delay)
		one, at := message(delay, "delayed", tag), time.Now().Add(8*time.Second)
		one.SetDelayTimestamp(at)
		send(by, one)
		expect(bodies(take(from, 1, 45*time.Second, 0)), []string{"delayed"}, "bodies")
		check(!time.Now().Before(at.Truncate(time.Second)), "it came before its time")
	})
	define("a_transaction_is_committed_or_rolled_back", func() {
		tag := "decided" + run
		from := consumer("decided", transaction, tagged(tag))
		by := producer(func(*rocketmq.MessageView) rocketmq.TransactionResolution { return rocketmq.UNKNOWN }, transaction)
		for _, decision := range []string{"committed", "rolled back"} {
			open := by.BeginTransaction()
			_, err := by.SendWithTransaction(ctx, message(transaction, decision, tag), open)
			check(err == nil, "send: %v", err)
			if decision == "committed" {
				err = open.Commit()
			} else {
				err = open.RollBack()
			}
			check(err == nil, "%s: %v", decision, err)
		}
		expect(bodies(take(from, 2, 15*time.Second, 0)), []string{"committed"}, "bodies")
	})
	define("an_open_transaction_is_asked_about", func() {
		tag := "asked" + run
		from := consumer("asked", transaction, tagged(tag))
		by := producer(func(one *rocketmq.MessageView) rocketmq.TransactionResolution {
			if one.GetTag() != nil && *one.GetTag() == tag {
				return rocketmq.COMMIT
			}
			return rocketmq.UNKNOWN
		}, transaction)
		_, err := by.SendWithTransaction(ctx, message(transaction, "asked", tag), by.BeginTransaction())
		check(err == nil, "send: %v", err)
		expect(bodies(take(from, 1, 60*time.Second, 0)), []string{"asked"}, "bodies")
	})
	if os.Getenv("ACCESS_KEY") != "" {
		define("a_wrong_secret_is_refused", func() {
			wrong, err := rocketmq.NewProducer(config("", "a-wrong-secret"), rocketmq.WithTopics(normal))
			if err == nil {
				err = wrong.Start()
			}
			if err == nil {
				err = failure(wrong, message(normal, "x", ""))
			}
			refused(err, "a wrong secret")
		})
	}
}

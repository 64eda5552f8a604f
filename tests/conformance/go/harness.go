package main

// Runs cases side by side and prints one line each: `ok NAME` or `not ok NAME: why`, then the count.
// A case fails by check(); its tags are its own.

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"time"
)

var timeMax = time.Duration(number("TIME_MAX_S", 100)) * time.Second

var run = func() string {
	random := make([]byte, 4)
	_, err := rand.Read(random)
	check(err == nil, "random bytes: %v", err)
	return hex.EncodeToString(random)
}()

type named struct {
	name   string
	action func()
}

type fault struct{ text string }

var cases []named

func define(name string, action func()) { cases = append(cases, named{name, action}) }

func check(holds bool, text string, values ...any) {
	if !holds {
		panic(fault{fmt.Sprintf(text, values...)})
	}
}

func expect(found, wanted any, what string) {
	check(reflect.DeepEqual(found, wanted), "%s: %#v, and not %#v", what, found, wanted)
}

func refused(err error, what string) { check(err != nil, "%s was not refused", what) }

type outcome struct {
	name, fault string
	seconds     float64
}

func runOne(one named) (ended outcome) {
	began := time.Now()
	defer func() {
		ended = outcome{name: one.name, seconds: time.Since(began).Seconds()}
		if cause := recover(); cause != nil {
			text := fmt.Sprint(cause)
			if known, ours := cause.(fault); ours {
				text = known.text
			}
			ended.fault = strings.Join(strings.Fields(text), " ")
			ended.fault = ended.fault[:min(len(ended.fault), 300)]
		}
	}()
	one.action()
	return
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "steady" {
		steady()
	}
	chosen := map[string]bool{}
	for _, name := range os.Args[1:] {
		chosen[name] = true
	}
	left := map[string]bool{}
	ended := make(chan outcome)
	var starting sync.WaitGroup
	for _, one := range cases {
		if len(chosen) == 0 || chosen[one.name] {
			left[one.name] = true
			starting.Go(func() { ended <- runOne(one) })
			time.Sleep(100 * time.Millisecond) // clients do not all start in one instant
		}
	}
	failed, count, end := 0, len(left), time.After(timeMax)
	report := func(one outcome) {
		delete(left, one.name)
		if one.fault == "" {
			fmt.Printf("ok %s (%.1f s)\n", one.name, one.seconds)
			return
		}
		failed++
		fmt.Printf("not ok %s: %s (%.1f s)\n", one.name, one.fault, one.seconds)
	}
	for over := false; !over && len(left) > 0; {
		select {
		case one := <-ended:
			report(one)
		case <-end:
			over = true
		}
	}
	for name := range left {
		report(outcome{name, "out of time", timeMax.Seconds()})
	}
	fmt.Printf("%d passed, %d failed\n", count-failed, failed)
	os.Exit(min(failed, 1))
}

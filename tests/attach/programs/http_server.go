// Answers GET /N with N * 7919 + 1, from a goroutine for each request, with garbage to collect; ends with its input.
package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

func main() {
	var served atomic.Int64
	answer := func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.ParseInt(strings.TrimPrefix(r.URL.Path, "/"), 10, 64)
		parts := make(chan int64)
		for i := 0; i < 8; i++ {
			go func() { parts <- int64(len(strings.Repeat("x", 1000+i)) - 1000 - i + 1) }()
		}
		sum := int64(0)
		for i := 0; i < 8; i++ {
			sum += <-parts
		}
		served.Add(1)
		fmt.Fprint(w, n*7919+sum/8)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Println("port", listener.Addr().(*net.TCPAddr).Port)
	go http.Serve(listener, http.HandlerFunc(answer))
	io.Copy(io.Discard, os.Stdin)
	fmt.Println("served", served.Load())
}

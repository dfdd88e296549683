// A static Go program that is soon over: its runtime starts threads and handles signals from the first moments on, and
// goroutines on several threads run in the code while it is lifted.
//
// needs: pool 96M
// expect: lifted text
package main

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"sync"
)

// Holds the only pointers to what the collector must keep.
var held [64][]byte

func main() {
	if len(os.Args) > 1 { // so that the code is several huge pages long
		fmt.Println(http.ListenAndServe(os.Args[1], nil))
	}
	var group sync.WaitGroup
	for i := range held {
		group.Add(1)
		go func() {
			defer group.Done()
			held[i] = []byte(fmt.Sprintf("goroutine %d", i))
			runtime.Gosched()
		}()
	}
	group.Wait()
	runtime.GC()
	length := 0
	for _, bytes := range held {
		length += len(bytes)
	}
	fmt.Println("ready")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Println(len(line) > 0, length)
}

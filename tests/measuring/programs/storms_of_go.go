// A Go heap that grows and shrinks: goroutines fill it with garbage, while another goroutine keeps a second CPU in its
// address space. With the argument `asks` the program itself returns the memory in each round. Runs until SIGTERM.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	goroutines = 3
	blocks     = 512
	blockBytes = 1 << 16
	pageBytes  = 4096
	// Rounds before the program prints that it is ready.
	firstRounds = 3
)

var (
	held  [goroutines][][]byte
	kept  [goroutines][][]byte
	spins atomic.Uint64
)

//go:noinline
func growAndShrink(number int) {
	taken := make([][]byte, blocks)
	for index := range taken {
		taken[index] = make([]byte, blockBytes)
		for at := 0; at < blockBytes; at += pageBytes {
			taken[index][at] = 1
		}
	}
	held[number] = taken
	held[number] = nil
}

// fillGaps allocates blocks; the first round keeps other blocks between them, so that a separate call returns each.
//
//go:noinline
func fillGaps(number int, isFirst bool) {
	taken := make([][]byte, 0, blocks)
	for index := 0; index < blocks; index++ {
		block := make([]byte, blockBytes)
		for at := 0; at < blockBytes; at += 4 * pageBytes {
			block[at] = 1
		}
		taken = append(taken, block)
		if isFirst {
			kept[number] = append(kept[number], make([]byte, blockBytes))
		}
	}
	held[number] = taken
	held[number] = nil
}

func round(isFirst bool) {
	var filling sync.WaitGroup
	for number := 0; number < goroutines; number++ {
		filling.Add(1)
		go func(number int) {
			defer filling.Done()
			fillGaps(number, isFirst)
		}(number)
	}
	filling.Wait()
	debug.FreeOSMemory()
}

// asks returns memory to the kernel in rounds. Nothing else collects garbage: goroutines that run during a collection
// would reuse the freed memory, and none would remain to be returned.
func asks() {
	debug.SetGCPercent(-1)
	go func() {
		for {
			spins.Add(1)
		}
	}()
	for index := 0; index < firstRounds; index++ {
		round(index == 0)
	}
	go func() {
		for {
			round(false)
		}
	}()
}

func leavesToScavenger() {
	for number := 0; number < goroutines; number++ {
		go func(number int) {
			for {
				growAndShrink(number)
			}
		}(number)
	}
}

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGTERM)
	if len(os.Args) > 1 && os.Args[1] == "asks" {
		asks()
	} else {
		leavesToScavenger()
	}
	fmt.Println("ready")
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
	}
	fmt.Println("all right")
}

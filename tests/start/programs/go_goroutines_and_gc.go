// A static Go program: no libc, its own threads, stacks and signals. Goroutines on several threads allocate, the garbage
// collector runs over data and bss that have been moved, and goroutines are preempted by signals in the lifted code.
//
// needs: pool 96M
// expect: lifted text rodata
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"text/template"
	"time"
)

// Package variables in data and bss that hold the only pointers to what the collector must keep.
var roots [200000]*node
var table = map[string]int{"one": 1, "two": 2, "three": 3}

type node struct {
	Name  string
	Left  *node
	Right *node
	Value int
}

func tree(depth, value int) *node {
	if depth == 0 {
		return nil
	}
	return &node{fmt.Sprint("node", value), tree(depth-1, 2*value), tree(depth-1, 2*value+1), value}
}

func (n *node) sum() int {
	if n == nil {
		return 0
	}
	return n.Value + len(n.Name) + n.Left.sum() + n.Right.sum()
}

func work(id int) string {
	for i := id; i < len(roots); i += 8 * 100 {
		roots[i] = tree(5, i)
	}
	runtime.GC()
	sum := 0
	for i := id; i < len(roots); i += 8 * 100 {
		sum += roots[i].sum()
	}
	encoded, _ := json.Marshal(roots[id])
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	writer.Write(encoded)
	writer.Close()
	reader, _ := gzip.NewReader(&packed)
	unpacked, _ := io.ReadAll(reader)
	matches := regexp.MustCompile(`node(\d+)`).FindAllString(string(unpacked), -1)
	return fmt.Sprintf("%d: sum %d, %d matches, %x", id, sum, len(matches), sha256.Sum256(unpacked))
}

func serve() string {
	page := template.Must(template.New("page").Parse("<p>{{.}}</p>"))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page.Execute(w, r.URL.Path)
	}))
	defer server.Close()
	answer, err := http.Get(server.URL + "/lifted")
	if err != nil {
		return err.Error()
	}
	body, _ := io.ReadAll(answer.Body)
	return string(body)
}

func main() {
	var group sync.WaitGroup
	results := make([]string, 8)
	var spinning atomic.Bool
	spinning.Store(true)
	for i := 0; i < 2; i++ {
		go func() { // can only be preempted by a signal
			for spinning.Load() {
			}
		}()
	}
	for id := range results {
		group.Add(1)
		go func(id int) {
			defer group.Done()
			results[id] = work(id)
		}(id)
	}
	group.Wait()
	time.Sleep(20 * time.Millisecond)
	spinning.Store(false)
	sort.Strings(results)
	for _, result := range results {
		fmt.Println(result)
	}
	_, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x; func f() int { return 1 }", 0)
	fmt.Println(serve(), err, table["one"]+table["two"]+table["three"])
	fmt.Println("ready")
	line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
	fmt.Println(len(line) > 0, work(3))
}

// Goroutines, garbage, memory of C's, and mappings by system calls from Go's own text.
// `work ROUNDS [raw]`
package main

/*
#include <stdlib.h>
#include <string.h>

static unsigned fill(unsigned char *at, size_t len, int with)
{
	unsigned sum = 0;

	memset(at, with, len);
	for (size_t i = 0; i < len; i++)
		sum += at[i];
	return sum;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"unsafe"
)

func garbage(seed int) int {
	kept := make(map[int][]byte)
	for i := 0; i < 2000; i++ {
		block := make([]byte, 1+(i*seed*7919)%65536)
		block[len(block)-1] = byte(i)
		kept[i%64] = block
	}
	return len(kept)
}

func ofC(n int) int {
	size := C.size_t(1 + n*4099%(1<<20))
	at := (*C.uchar)(C.malloc(size))
	defer C.free(unsafe.Pointer(at))
	return int(C.fill(at, size, C.int(n&127)))
}

func mapped(n int) int {
	bytes, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		panic(err)
	}
	for i := range bytes {
		bytes[i] = byte(i + n)
	}
	sum := 0
	for _, b := range bytes {
		sum += int(b)
	}
	if err := syscall.Mprotect(bytes, syscall.PROT_READ); err != nil {
		panic(err)
	}
	if err := syscall.Munmap(bytes); err != nil {
		panic(err)
	}
	return sum
}

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	raw := len(os.Args) > 2 // mappings by package syscall, too
	if err != nil {
		panic(err)
	}
	sum := 0
	for round := 0; round < rounds; round++ {
		var all sync.WaitGroup
		sums := make([]int, 8)
		for n := range sums {
			all.Add(1)
			go func(n int) {
				defer all.Done()
				runtime.LockOSThread()
				sums[n] = garbage(n+1) + ofC(n)
				if raw {
					sums[n] += mapped(n)
				}
			}(n)
		}
		all.Wait()
		for _, s := range sums {
			sum += s
		}
		runtime.GC()
		if round%4 == 3 {
			debug.FreeOSMemory()
		}
	}
	fmt.Println("sum", sum)
}

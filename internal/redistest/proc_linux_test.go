package redistest

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// onDyingThread calls f on a thread that has ended when it returns.
func onDyingThread(t *testing.T, f func()) {
	t.Helper()
	tids := make(chan int)
	var attempt func()
	attempt = func() {
		runtime.LockOSThread() // and never unlocked, so it ends with the goroutine
		tid := syscall.Gettid()
		if tid == os.Getpid() {
			// The main thread never ends. While this goroutine occupies it, the
			// next one is elsewhere.
			done := make(chan struct{})
			go func() {
				defer close(done)
				attempt()
			}()
			<-done
			return
		}
		f()
		tids <- tid
	}
	go attempt()
	task := fmt.Sprintf("/proc/self/task/%d", <-tids)
	eventually(t, func() bool {
		_, err := os.Stat(task)
		return os.IsNotExist(err)
	}, "the thread ends")
}

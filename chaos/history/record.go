package history

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// A Recorder writes what a process does to a file, a line of JSON each. It is safe
// for concurrent use.
type Recorder struct {
	mu   sync.Mutex
	file *os.File
	out  *bufio.Writer
	err  error // the first
}

type line struct {
	Hold   *Hold   `json:"hold,omitempty"`
	Access *Access `json:"access,omitempty"`
}

// NewRecorder creates the file.
func NewRecorder(path string) (*Recorder, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &Recorder{file: f, out: bufio.NewWriterSize(f, 1<<16)}, nil
}

// Hold records h.
func (r *Recorder) Hold(h Hold) { r.write(line{Hold: &h}) }

// Access records a.
func (r *Recorder) Access(a Access) { r.write(line{Access: &a}) }

func (r *Recorder) write(l line) {
	text, err := json.Marshal(l)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		_, err = r.out.Write(append(text, '\n'))
	}
	if r.err == nil {
		r.err = err
	}
}

// Close returns the first error of all.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(r.out.Flush(), r.file.Close()); r.err == nil {
		r.err = err
	}
	return r.err
}

// Load adds what a Recorder wrote to path. The last line of a process that was killed
// may be torn: it is ignored.
func (h *History) Load(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for d := json.NewDecoder(bufio.NewReaderSize(f, 1<<16)); ; {
		var l line
		switch err := d.Decode(&l); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		}
		if l.Hold != nil {
			h.Holds = append(h.Holds, *l.Hold)
		}
		if l.Access != nil {
			h.Accesses = append(h.Accesses, *l.Access)
		}
	}
}

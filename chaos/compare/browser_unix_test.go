//go:build unix

package compare

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chromium returns the path of a Chromium. Without one the test skips, loudly, and
// with REDLOCK_REQUIRE_CHROMIUM=1 it fails.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("REDLOCK_REQUIRE_CHROMIUM") == "1" {
		t.Fatal("REDLOCK_REQUIRE_CHROMIUM=1, and no chromium on PATH")
	}
	t.Skip("SKIPPED, NOT PASSED: no chromium on PATH: nobody has looked at the page")
	return ""
}

// A browser looks at one page, in a frame of any width: a headless Chromium has no
// window narrower than 500 pixels.
type browser struct {
	t    *testing.T
	path string
	url  string
}

// A layout is what the page says of itself.
type layout struct {
	Width   int      // that it wants
	Height  int      // likewise
	Texts   int      // in the figures
	Outside []string // of these, those that are not wholly inside their figure
}

const frame = `<!doctype html><body style="margin:0"><iframe id="f" style="border:0;display:block;width:%[1]spx;height:%[2]spx" src="/page"></iframe><pre id="out" style="display:none"></pre>
<script>
f.onload = () => {
  const d = f.contentDocument, texts = [...d.querySelectorAll('figure svg text')];
  const outside = texts.filter(t => {
    const b = t.getBBox(), v = t.ownerSVGElement.viewBox.baseVal;
    return b.x < -1 || b.y < -2 || b.x + b.width > v.width + 1 || b.y + b.height > v.height + 2;
  });
  out.textContent = JSON.stringify({Width: d.documentElement.scrollWidth, Height: d.documentElement.scrollHeight, Texts: texts.length, Outside: outside.map(t => t.textContent)});
}
</script>`

func newBrowser(t *testing.T, page []byte) *browser {
	t.Helper()
	path := chromium(t)
	mux := http.NewServeMux()
	mux.HandleFunc("/page", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page)
	})
	mux.HandleFunc("/frame", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(w, frame, r.FormValue("w"), r.FormValue("h"))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return &browser{t, path, s.URL}
}

// run starts the browser with a profile of its own, and returns what it prints.
func (b *browser) run(width, height int, args ...string) []byte {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	args = append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
		"--user-data-dir=" + b.t.TempDir(), fmt.Sprintf("--window-size=%d,%d", max(width, 500), height),
	}, args...)
	cmd := exec.CommandContext(ctx, b.path, append(args, fmt.Sprintf("%s/frame?w=%d&h=%d", b.url, width, height))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(b.t, err, "%s", stderr.String())
	return out
}

var outElement = regexp.MustCompile(`<pre id="out"[^>]*>(.*?)</pre>`)

func (b *browser) layout(width int) layout {
	b.t.Helper()
	m := outElement.FindSubmatch(b.run(width, 800, "--virtual-time-budget=5000", "--dump-dom"))
	require.NotNil(b.t, m)
	var l layout
	require.NoError(b.t, json.Unmarshal([]byte(html.UnescapeString(string(m[1]))), &l))
	return l
}

func (b *browser) screenshot(width, height int, dark bool) *image.RGBA {
	b.t.Helper()
	scheme := 1
	if dark {
		scheme = 0
	}
	name := filepath.Join(b.t.TempDir(), "page.png")
	b.run(width, height, "--virtual-time-budget=5000", fmt.Sprintf("--blink-settings=preferredColorScheme=%d", scheme), "--screenshot="+name)
	f, err := os.Open(name)
	require.NoError(b.t, err)
	defer f.Close()
	decoded, err := png.Decode(f)
	require.NoError(b.t, err)
	m := image.NewRGBA(image.Rect(0, 0, width, decoded.Bounds().Dy()))
	draw.Draw(m, m.Bounds(), decoded, image.Point{}, draw.Src)
	return m
}

// sample is which pixels are looked at: each so many, in both directions.
const sample = 2

// emptyBands returns where, from top to bottom, nothing is to be seen for the
// height of a band.
func emptyBands(m *image.RGBA, band int) []int {
	var empty []int
	paper := m.RGBAAt(1, 1)
	for top := 0; top+band <= m.Rect.Dy(); top += band {
		ink := 0
		for y := top; y < top+band; y += sample {
			for x := 0; x < m.Rect.Dx(); x += sample {
				if m.RGBAAt(x, y) != paper {
					ink++
				}
			}
		}
		if ink*sample*sample*200 < m.Rect.Dx()*band {
			empty = append(empty, top)
		}
	}
	return empty
}

// look returns how many colours there are, and how bright it is, of 255.
func look(m *image.RGBA) (colors, bright int) {
	seen := map[color.RGBA]bool{}
	looked := 0
	for y := 0; y < m.Rect.Dy(); y += sample {
		for x := 0; x < m.Rect.Dx(); x += sample {
			c := m.RGBAAt(x, y)
			seen[c] = true
			bright += (2*int(c.R) + 5*int(c.G) + int(c.B)) / 8
			looked++
		}
	}
	return len(seen), bright / looked
}

// On a desktop and on a phone, in light and in dark: nothing sticks out, and
// nothing is empty.
func TestThePageCanBeRead(t *testing.T) {
	page, err := fullPage().html()
	require.NoError(t, err)
	b := newBrowser(t, page)
	for _, width := range []int{390, 1280} {
		l := b.layout(width)
		require.LessOrEqual(t, l.Width, width, "the page is wider than its window")
		require.Greater(t, l.Texts, 100)
		require.Empty(t, l.Outside, "texts outside their figures")
		for _, dark := range []bool{false, true} {
			m := b.screenshot(width, l.Height, dark)
			require.Equal(t, l.Height, m.Rect.Dy())
			require.Empty(t, emptyBands(m, 200), "width %d, dark %v", width, dark)
			colors, bright := look(m)
			require.Greater(t, colors, 50)
			if dark {
				require.Less(t, bright, 80)
			} else {
				require.Greater(t, bright, 200)
			}
		}
	}
}

// The checks above would see an empty page, and one that is too wide.
func TestABadPageIsSeen(t *testing.T) {
	b := newBrowser(t, []byte(`<!doctype html><body><div style="width:900px">wide</div><figure><svg viewBox="0 0 100 20"><text x="90" y="10">outside</text></svg></figure>`))
	l := b.layout(390)
	require.Greater(t, l.Width, 390)
	require.Equal(t, []string{"outside"}, l.Outside)
	require.NotEmpty(t, emptyBands(b.screenshot(390, 800, false), 200))
}

// Package live is a page that shows what the limiters of a service and their Postgres are doing, as
// twelve pictures of the last two minutes.
//
//	live.go      the page, and the stream of samples that it draws
//	panels.go    the twelve pictures, and what each shows
//	recorder.go  durations and grants of an instance
//	busiest.go   the most that one user was granted
//	database.go  what Postgres counts
//	page.html, page.css, page.js
package live

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglimit/ratelimit/pglimit"
)

// Page of some instances. It is safe for concurrent use.
type Page struct {
	config  Config
	panels  []panel
	busiest busiest

	mu      sync.Mutex
	samples []sample      // the last two minutes
	changed chan struct{} // closed at the next sample
	ended   bool
}

// Config of a [Page]. Load may be nil, everything else is required.
type Config struct {
	Pool      *pgxpool.Pool // for the statistics of Postgres
	Limit     pglimit.Limit // of all limiters
	Instances []Instance    // that run in this process
	Load      interface{ Users() int }
}

// Instance of the service.
type Instance struct {
	Name     string
	URL      string // of its own page
	Limiters []*pglimit.Limiter
	Recorder *Recorder
}

// sample is an event for the browser.
type sample struct {
	id   int64 // milliseconds of Unix time
	data []byte
}

const (
	interval = time.Second
	kept     = 2 * time.Minute / interval
)

//go:embed page.html page.css page.js
var files embed.FS

var pageTemplate = template.Must(template.ParseFS(files, "page.html"))

// New page. It shows numbers once [Page.Run] is called.
func New(config Config) *Page {
	p := &Page{config: config, busiest: busiest{}, changed: make(chan struct{})}
	var names []string
	for _, in := range config.Instances {
		names = append(names, in.Name)
	}
	p.panels = panels(names, config.Limit)
	for i := range p.panels {
		p.panels[i].ID = fmt.Sprintf("panel-%d", i+1)
	}
	return p
}

// Run takes a sample each second until ctx ends. Then the streams of all browsers end, which lets
// an HTTP server shut down.
func (p *Page) Run(ctx context.Context) {
	defer p.add(nil)
	for before := p.read(ctx); ; {
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
		now := p.read(ctx)
		p.add(p.sample(now, before))
		before = now
	}
}

// read all counters.
func (p *Page) read(ctx context.Context) *reading {
	now := &reading{database: readDatabase(ctx, p.config.Pool), at: time.Now()}
	for _, in := range p.config.Instances {
		var stats pglimit.Stats
		for _, limiter := range in.Limiters {
			stats = stats.Plus(limiter.Stats())
		}
		now.instances = append(now.instances, stats)
		since := in.Recorder.flush()
		now.grants = append(now.grants, since.grants...)
		now.denials = append(now.denials, since.denials...)
		now.trips = append(now.trips, since.trips...)
		now.taken = append(now.taken, since.taken...)
	}
	now.busiest = p.busiest.add(now.taken)
	return now
}

// sample is what the browser draws: the time, and for each panel a number per line.
func (p *Page) sample(now, before *reading) *sample {
	var event struct {
		At     int64        `json:"at"`
		Panels [][]*float64 `json:"panels"`
	}
	event.At = now.at.UnixMilli()
	for _, panel := range p.panels {
		event.Panels = append(event.Panels, panel.values(now, before))
	}
	data, _ := json.Marshal(event) //nolint:errchkjson // the numbers are finite
	return &sample{event.At, data}
}

// add a sample and wake the browsers. Nil: there will be no more.
func (p *Page) add(s *sample) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended = s == nil; !p.ended {
		p.samples = append(p.samples, *s)
		p.samples = p.samples[max(0, len(p.samples)-int(kept)):]
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// after returns the samples after that ID. changed is closed when there are more.
func (p *Page) after(id int64) (samples []sample, changed <-chan struct{}, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.samples {
		if s.id > id {
			samples = append(samples, s)
		}
	}
	return samples, p.changed, p.ended
}

// Register the page at /, and below /live/ what it needs.
func (p *Page) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", p.page)
	mux.HandleFunc("GET /live/events", p.events)
	mux.Handle("GET /live/", http.StripPrefix("/live", http.FileServerFS(files)))
}

func (p *Page) page(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_ = pageTemplate.Execute(w, map[string]any{"Panels": p.panels, "Instances": p.config.Instances, "Limit": p.config.Limit, "Load": p.config.Load}) // the browser is gone
}

// events sends the samples of the last two minutes, and then each new one. A browser that reconnects names the last one
// it has.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	stream := http.NewResponseController(w)
	_ = stream.SetReadDeadline(time.Time{})                            // the server's ReadTimeout would end it
	last, _ := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64) // none: 0
	for {
		samples, changed, ended := p.after(last)
		for _, s := range samples {
			if _, err := fmt.Fprintf(w, "id: %d\ndata: %s\n\n", s.id, s.data); err != nil {
				return
			}
			last = s.id
		}
		if err := stream.Flush(); err != nil || ended {
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

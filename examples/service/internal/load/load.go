// Package load makes requests as users of a service do: at random times, at random endpoints and
// instances.
package load

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

const (
	perUser  = 5.0 // requests per second
	stay     = 30 * time.Second
	mostBusy = 256 // requests at once: more are not made

	// MostUsers is how many users there may be.
	MostUsers = 1000
)

// Load is some users.
type Load struct {
	urls  []string
	lasts time.Duration
	users int
}

// New makes a load on the URLs with that many users, from 0 to MostUsers. It begins with [Load.Run], and lasts that
// long, or, if lasts is 0, until Run ends.
func New(users int, lasts time.Duration, urls ...string) (*Load, error) {
	if users < 0 || users > MostUsers {
		return nil, fmt.Errorf("load: there cannot be %d users: from 0 to %d", users, MostUsers)
	}
	return &Load{urls, lasts, users}, nil
}

// ParseUsers parses a number of users.
func ParseUsers(text string) (int, error) {
	users, err := strconv.Atoi(text)
	if err != nil || users < 0 || users > MostUsers {
		return 0, fmt.Errorf("users is %q: it must be a number from 0 to %d", text, MostUsers)
	}
	return users, nil
}

// Run makes requests until ctx ends. A user stays for half a minute and is then replaced, so that there are always new
// keys, and rows for the cleanup.
func (l *Load) Run(ctx context.Context) {
	if l.users == 0 {
		return
	}
	if l.lasts > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, l.lasts)
		defer cancel()
	}
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: mostBusy}}
	defer client.CloseIdleConnections()
	var requests sync.WaitGroup
	defer requests.Wait()
	busy := make(chan struct{}, mostBusy)
	left := 0.0 // users who have come and gone

	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := time.Now(); ; timer.Reset(time.Until(due)) {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		users := float64(l.users)
		wait := time.Duration(rand.ExpFloat64() / (users * perUser) * float64(time.Second))
		due = due.Add(wait)
		left += users * wait.Seconds() / stay.Seconds()
		user, url := "user-"+strconv.Itoa(int(left+rand.Float64()*users)), l.urls[rand.IntN(len(l.urls))]
		select {
		case busy <- struct{}{}:
			requests.Go(func() {
				defer func() { <-busy }()
				request(ctx, client, url, user)
			})
		default:
		}
	}
}

// request makes a request as that user. The service counts the answers.
func request(ctx context.Context, client *http.Client, url, user string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return
	}
	r.Header.Set("X-User", user)
	answer, err := client.Do(r)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, answer.Body)
	_ = answer.Body.Close()
}

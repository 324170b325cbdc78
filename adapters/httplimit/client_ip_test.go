package httplimit_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/pglimit/ratelimit/adapters/httplimit"
	"github.com/pglimit/ratelimit/pglimit"
)

func prefixes(texts ...string) (p []netip.Prefix) {
	for _, text := range texts {
		p = append(p, netip.MustParsePrefix(text))
	}
	return p
}

func TestClientIP(t *testing.T) {
	t.Parallel()
	direct := httplimit.Proxies{}
	inside := httplimit.Proxies{Prefixes: prefixes("10.0.0.0/8", "fd00::/8", "203.0.113.7/32")}
	one, two := httplimit.Proxies{Count: 1}, httplimit.Proxies{Count: 2}
	cdn := httplimit.Proxies{Prefixes: prefixes("173.245.48.0/20"), Field: "cf-connecting-ip"}
	for name, c := range map[string]struct {
		proxies httplimit.Proxies
		remote  string
		lines   []string // of X-Forwarded-For, or of Field
		want    string   // "" is an error
	}{
		"direct":                        {direct, "192.0.2.7:5000", nil, "ip:192.0.2.7"},
		"direct, and the field ignored": {direct, "192.0.2.7:5000", []string{"198.51.100.1"}, "ip:192.0.2.7"},
		"without a port":                {direct, "192.0.2.7", nil, "ip:192.0.2.7"},
		"IPv6":                          {direct, "[2001:db8:1:2:3:4:5:6]:5000", nil, "ip:2001:db8:1:2::/64"},
		"IPv6 /56":                      {httplimit.Proxies{IPv6: 56}, "[2001:db8:1:2ff:3:4:5:6]:5000", nil, "ip:2001:db8:1:200::/56"},
		"IPv6 /128":                     {httplimit.Proxies{IPv6: 128}, "[2001:db8::1]:5000", nil, "ip:2001:db8::1"},
		"IPv4 in IPv6":                  {direct, "[::ffff:192.0.2.7]:5000", nil, "ip:192.0.2.7"},
		"IPv4 in IPv6 with a zone":      {direct, "[::ffff:192.0.2.7%eth0]:5000", nil, "ip:192.0.2.7"},
		"a zone":                        {direct, "[fe80::1%eth0]:5000", nil, "ip:fe80::/64"},
		"a socket of the file system":   {direct, "@", nil, ""},
		"no address":                    {direct, "", nil, ""},
		"IPv6 in brackets":              {direct, "[2001:db8:1:2:3:4:5:6]", nil, "ip:2001:db8:1:2::/64"},
		"IPv6 in brackets, with a zone": {direct, "[fe80::1%eth0]", nil, "ip:fe80::/64"},
		"IPv4 in brackets":              {direct, "[192.0.2.7]", nil, ""},
		"brackets":                      {direct, "[]", nil, ""},
		"a name":                        {direct, "localhost:80", nil, ""},

		"from a proxy":                        {inside, "10.0.0.1:1", []string{"192.0.2.7"}, "ip:192.0.2.7"},
		"past the proxies, spoofed":           {inside, "192.0.2.7:1", []string{"198.51.100.1"}, "ip:192.0.2.7"},
		"spoofed in front of the proxy":       {inside, "10.0.0.1:1", []string{"198.51.100.1, 192.0.2.7"}, "ip:192.0.2.7"},
		"garbage in front of the client":      {inside, "10.0.0.1:1", []string{"<script>, 192.0.2.7"}, "ip:192.0.2.7"},
		"two proxies":                         {inside, "10.0.0.1:1", []string{"198.51.100.1, 192.0.2.7, 10.9.9.9"}, "ip:192.0.2.7"},
		"proxies of both kinds":               {inside, "[fd00::1]:1", []string{"192.0.2.7, 203.0.113.7"}, "ip:192.0.2.7"},
		"several lines":                       {inside, "10.0.0.1:1", []string{"198.51.100.1", "192.0.2.7", "10.9.9.9"}, "ip:192.0.2.7"},
		"empty members":                       {inside, "10.0.0.1:1", []string{"192.0.2.7, ,", "", " , 10.9.9.9,,"}, "ip:192.0.2.7"},
		"a proxy as IPv4 in IPv6":             {inside, "[::ffff:10.0.0.1]:1", []string{"192.0.2.7, ::ffff:10.9.9.9"}, "ip:192.0.2.7"},
		"a proxy with a zone":                 {inside, "[fd00::1%eth0]:1", []string{"192.0.2.7"}, "ip:192.0.2.7"},
		"a client with a port":                {inside, "10.0.0.1:1", []string{"192.0.2.7:4711"}, "ip:192.0.2.7"},
		"an IPv6 client with a port":          {inside, "10.0.0.1:1", []string{"[2001:db8::1]:4711"}, "ip:2001:db8::/64"},
		"an IPv6 client in brackets":          {inside, "10.0.0.1:1", []string{"[2001:db8::1]"}, "ip:2001:db8::/64"},
		"a proxy in brackets":                 {inside, "10.0.0.1:1", []string{"192.0.2.7, [fd00::2]"}, "ip:192.0.2.7"},
		"a client of the inside":              {inside, "10.0.0.1:1", []string{"10.2.2.2"}, "ip:10.2.2.2"},
		"a client of the inside, directly":    {inside, "10.2.2.2:1", nil, "ip:10.2.2.2"},
		"garbage from a proxy":                {inside, "10.0.0.1:1", []string{"192.0.2.7, unknown"}, ""},
		"garbage between proxies":             {inside, "10.0.0.1:1", []string{"192.0.2.7, _hidden, 10.9.9.9"}, ""},
		"an address with zeros":               {inside, "10.0.0.1:1", []string{"192.0.2.007"}, ""},
		"an address as one number":            {inside, "10.0.0.1:1", []string{"3221225991"}, ""},
		"no address of who calls, and a list": {inside, "@", []string{"192.0.2.7"}, ""},

		"one proxy":                 {one, "10.0.0.1:1", []string{"192.0.2.7"}, "ip:192.0.2.7"},
		"one proxy, spoofed":        {one, "10.0.0.1:1", []string{"198.51.100.1, 192.0.2.7"}, "ip:192.0.2.7"},
		"one proxy, over a socket":  {one, "@", []string{"198.51.100.1", "192.0.2.7"}, "ip:192.0.2.7"},
		"one proxy, none came":      {one, "192.0.2.7:1", nil, ""},
		"one proxy, garbage":        {one, "10.0.0.1:1", []string{"192.0.2.7, unknown"}, ""},
		"two counted":               {two, "10.0.0.1:1", []string{"198.51.100.1, 192.0.2.7, 203.0.113.9"}, "ip:192.0.2.7"},
		"two counted, one came":     {two, "10.0.0.1:1", []string{"192.0.2.7"}, ""},
		"two counted, client empty": {two, "10.0.0.1:1", []string{", 203.0.113.9"}, ""},

		"a field of a CDN":           {cdn, "173.245.48.9:1", []string{"2001:db8::1"}, "ip:2001:db8::/64"},
		"a field of a CDN, spoofed":  {cdn, "192.0.2.7:1", []string{"198.51.100.1"}, "ip:192.0.2.7"},
		"a field of a CDN, appended": {cdn, "173.245.48.9:1", []string{"198.51.100.1", "192.0.2.7"}, "ip:192.0.2.7"},
	} {
		request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
		request.RemoteAddr = c.remote
		field := "X-Forwarded-For"
		if c.proxies.Field != "" {
			field = c.proxies.Field
		}
		for _, line := range c.lines {
			request.Header.Add(field, line)
		}
		got, err := httplimit.ClientIP(c.proxies)(request)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v, want %q", name, got, err, c.want)
		}
	}
}

// Behind a proxy on a Unix socket, the error says what works there. And a megabyte that a client sends is neither
// quoted nor logged.
func TestAnAddressThatCannotBeRead(t *testing.T) {
	t.Parallel()
	behind := httplimit.ClientIP(httplimit.Proxies{Prefixes: prefixes("10.0.0.0/8")})
	request := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	request.RemoteAddr = "@"
	if _, err := behind(request); err == nil || !strings.Contains(err.Error(), "Unix socket: set Proxies.Count") {
		t.Error(err)
	}
	request.RemoteAddr = "10.0.0.1:1"
	request.Header.Set("X-Forwarded-For", strings.Repeat("\xff", 900_000))
	if _, err := behind(request); err == nil || len(err.Error()) > 500 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	for sent, want := range map[string]string{
		strings.Repeat("\xff", 900_000): "(900012 bytes)", // with what precedes it
		strings.Repeat("ö", 1000):       "ö… (2012 bytes)",
	} {
		log := &logged{}
		yours := func(*http.Request) (string, error) { return "", errors.New(sent) }
		httplimit.New(limited(t, pglimit.PerHour(1)), httplimit.Config{Key: yours, Logger: log.logger()})(fine).ServeHTTP(httptest.NewRecorder(), request)
		if text := log.String(); len(text) > 5000 || !strings.Contains(text, want) {
			t.Errorf("%d bytes are logged: %.2000s", len(text), text)
		}
	}
}

func TestProxiesAreChecked(t *testing.T) {
	t.Parallel()
	for want, proxies := range map[string]httplimit.Proxies{
		"both Prefixes and a Count":      {Prefixes: prefixes("10.0.0.0/8"), Count: 1},
		"Proxies.Count is -1":            {Count: -1},
		"Proxies.IPv6 is 129":            {IPv6: 129},
		"Proxies.IPv6 is -1":             {IPv6: -1},
		"Proxies.Prefixes[1] is not":     {Prefixes: append(prefixes("10.0.0.0/8"), netip.Prefix{})},
		"::ffff:10.0.0.0/104: write it":  {Prefixes: prefixes("::ffff:10.0.0.0/104")},
		`Proxies.Field is "X-Real-Ip" w`: {Field: "X-Real-Ip"},
	} {
		func() {
			defer func() {
				if err, failed := recover().(error); !failed || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}()
			httplimit.ClientIP(proxies)
		}()
	}
}

// Whatever clients send in front of what a proxy appends: the key is that of the address that the
// proxy saw. And whatever is sent, a key is an address or a network of the right size.
func FuzzClientIP(f *testing.F) {
	for _, line := range []string{"", "192.0.2.1", "192.0.2.1, 10.0.0.1", "[::1]:80, fe80::1%eth0", "unknown, ,", "::ffff:10.0.0.1", "10.0.0.1:99999", "[", "]:1", ",,,,"} {
		f.Add(line, line, "198.51.100.4", byte(64))
		f.Add(line, "", "[2001:db8::4%x]:7", byte(48))
		f.Add("10.0.0.9", line, line, byte(128))
	}
	f.Fuzz(func(t *testing.T, sent, sentToo, remote string, bits byte) {
		if strings.Contains(remote, ",") || strings.TrimSpace(remote) == "" {
			return // a proxy appends one address
		}
		trusted := prefixes("10.0.0.0/8", "fd00::/8")
		ipv6 := int(bits)%128 + 1
		direct := httplimit.ClientIP(httplimit.Proxies{IPv6: ipv6})
		request := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {sent, sentToo}}}
		want, errWant := direct(request)
		checkIP(t, want, errWant, ipv6)

		request.Header.Add("X-Forwarded-For", remote)
		request.RemoteAddr = "10.0.0.1:1"
		got, err := httplimit.ClientIP(httplimit.Proxies{Count: 1, IPv6: ipv6})(request)
		if got != want && strings.TrimSpace(remote) == remote || (err == nil) != (errWant == nil) && strings.TrimSpace(remote) == remote {
			t.Fatalf("counted: %q, %v, want %q, %v", got, err, want, errWant)
		}
		checkIP(t, got, err, ipv6)
		got, err = httplimit.ClientIP(httplimit.Proxies{Prefixes: trusted, IPv6: ipv6})(request)
		checkIP(t, got, err, ipv6)
		if addr, bad := netip.ParseAddr(remote); bad == nil && !inside(trusted, addr) && got != want {
			t.Fatalf("by prefixes: %q, %v, want %q", got, err, want)
		}
	})
}

func inside(trusted []netip.Prefix, addr netip.Addr) bool {
	for _, prefix := range trusted {
		if prefix.Contains(addr.WithZone("").Unmap()) {
			return true
		}
	}
	return false
}

func checkIP(t *testing.T, key string, err error, ipv6 int) {
	t.Helper()
	if err != nil {
		if key != "" {
			t.Fatalf("%q, %v", key, err)
		}
		return
	}
	text, of := strings.CutPrefix(key, "ip:")
	addr, single := netip.ParseAddr(text)
	network, several := netip.ParsePrefix(text)
	switch {
	case of && single == nil && addr.Zone() == "" && (addr.Is4() || ipv6 == 128 && !addr.Is4In6()):
	case of && several == nil && network.Bits() == ipv6 && network == network.Masked() && network.Addr().Is6():
	default:
		t.Fatalf("%q", key)
	}
}

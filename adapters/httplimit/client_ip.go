package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// Proxies says which of the addresses that a request passed are your own proxies; the address in front of them is the
// client's. The zero Proxies is for a server that clients connect to directly.
//
// Each proxy appends the address that called it to the header field. The right end was written by your proxies, and
// anything to the left of that may come from anybody. So the field is read from right to left, starting with
// Request.RemoteAddr, the address that called this server.
type Proxies struct {
	// Prefixes of the proxies' addresses. The client is the first address that is in none of them, or the leftmost if
	// all are. A client that bypasses the proxies is counted by its own address. Do not list your whole network if only
	// some of its machines are proxies: any machine in Prefixes can claim any client address.
	Prefixes []netip.Prefix

	// Count of proxies that each request passes, if their addresses are not known. If it is too low, all clients share
	// the address of a proxy; if it is too high, or if they can reach this server without a proxy, clients choose
	// theirs. Not together with Prefixes. Use it on a Unix socket too, where the caller has no address for Prefixes to
	// match.
	Count int

	// Field of the header. Empty: X-Forwarded-For. A field such as CF-Connecting-IP may hold a single address; your
	// proxy must set it on every request, whatever the client sent.
	Field string

	// IPv6 is how many leading bits of an IPv6 address identify a client, from 1 to 128. Zero: 64, because a provider's
	// customer has at least 64 bits to choose from; many have a /56, some a /48.
	IPv6 int
}

// ClientIP counts requests by the address of the client: "ip:192.0.2.7", or "ip:2001:db8:0:1::/64". Zones are stripped,
// and IPv4 in IPv6 is IPv4. If the address is not certain, the request gets an error and 500.
//
// It panics if the proxies are not valid: both Prefixes and Count, an invalid prefix, a negative Count, an IPv6 out of
// range.
func ClientIP(proxies Proxies) KeyFunc {
	if err := proxies.validate(); err != nil {
		//nolint:forbidigo // as New does, when the program starts
		panic(err)
	}
	p := proxies
	if p.Field == "" {
		p.Field = "X-Forwarded-For"
	}
	p.Field = http.CanonicalHeaderKey(p.Field)
	if p.IPv6 == 0 {
		p.IPv6 = 64
	}
	return func(r *http.Request) (string, error) {
		addr, err := p.client(r.RemoteAddr, r.Header[p.Field])
		if err != nil {
			return "", err
		}
		return p.key(addr), nil
	}
}

func (p *Proxies) validate() error {
	switch {
	case len(p.Prefixes) > 0 && p.Count != 0:
		return errors.New("httplimit: Proxies has both Prefixes and a Count: one of them says who the proxies are")
	case p.Count < 0:
		return fmt.Errorf("httplimit: Proxies.Count is %d: it must not be negative", p.Count)
	case p.IPv6 < 0 || p.IPv6 > 128:
		return fmt.Errorf("httplimit: Proxies.IPv6 is %d: it must be from 1 to 128, or 0 for 64", p.IPv6)
	}
	for i, prefix := range p.Prefixes {
		if !prefix.IsValid() {
			return fmt.Errorf(
				"httplimit: Proxies.Prefixes[%d] is not valid: make it with netip.MustParsePrefix, for instance", i)
		}
		if prefix.Addr().Is4In6() {
			return fmt.Errorf(
				"httplimit: Proxies.Prefixes[%d] is %v: write it as IPv4, which its addresses are counted as", i, prefix)
		}
	}
	if p.Field != "" && len(p.Prefixes) == 0 && p.Count == 0 {
		return fmt.Errorf("httplimit: Proxies.Field is %q without Prefixes or Count: say who may set it", p.Field)
	}
	return nil
}

// client returns the address of the client: the first, from right to left, that is not a proxy's.
func (p *Proxies) client(remote string, lines []string) (addr netip.Addr, err error) {
	rest := strings.Join(lines, ",") // several lines are one list
	if p.Count == 0 {
		if addr, err = parseAddr(remote); err != nil {
			return addr, fmt.Errorf("Request.RemoteAddr: %w "+
				"(of a Unix socket: set Proxies.Count to the number of proxies, without Prefixes)", err)
		}
	}
	for n := 0; n < p.Count || p.Count == 0 && p.trusts(addr); n++ {
		var hop string
		hop, rest = lastOf(rest)
		if hop == "" && p.Count > 0 {
			return addr, fmt.Errorf("the header field %s has %d addresses, and Proxies.Count is %d", p.Field, n, p.Count)
		}
		if hop == "" {
			break
		}
		if p.Count > n+1 { // whatever that proxy claims
			continue
		}
		if addr, err = parseAddr(hop); err != nil {
			return addr, fmt.Errorf("the header field %s: %w", p.Field, err)
		}
	}
	return addr, nil
}

func (p *Proxies) trusts(addr netip.Addr) bool {
	for _, prefix := range p.Prefixes {
		if prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// key of an address that parseAddr returned.
func (p *Proxies) key(addr netip.Addr) string {
	text := append(make([]byte, 0, 64), "ip:"...)
	if addr.Is4() || p.IPv6 == 128 {
		return string(addr.AppendTo(text))
	}
	prefix, err := addr.Prefix(p.IPv6)
	if err != nil { // IPv6 was checked
		return ""
	}
	return string(prefix.AppendTo(text))
}

// lastOf returns the last member of a list that is not empty, if there is one, and what is to the left of it.
func lastOf(list string) (member, left string) {
	for list != "" && member == "" {
		at := strings.LastIndexByte(list, ',')
		member, list = strings.TrimSpace(list[at+1:]), list[:max(at, 0)]
	}
	return member, list
}

// parseAddr reads an address, with or without a port: some proxies write one.
func parseAddr(text string) (addr netip.Addr, err error) {
	withPort := text
	switch {
	case strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]"): // IPv6 as in a URL, without a port
		withPort += ":0"
		fallthrough
	case strings.HasPrefix(text, "[") || strings.Count(text, ":") == 1:
		var both netip.AddrPort
		both, err = netip.ParseAddrPort(withPort)
		addr = both.Addr()
	default:
		addr, err = netip.ParseAddr(text)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.64q is not an IP address", text) // clients may send a megabyte
	}
	return addr.WithZone("").Unmap(), nil
}

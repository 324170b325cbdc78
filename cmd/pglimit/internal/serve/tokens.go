package serve

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
)

// Right is what a token is for: one of the constants, or several. None of them includes another.
type Right uint8

// Rights, and what needs them.
const (
	Decide     Right = 1 << iota // take, refund, settle, peek
	Read                         // peek, top, the page
	Administer                   // reset, and all that the page can do
)

// rights by name, in the order of their bits.
var rights = []string{"decide", "read", "administer"}

// String names the rights as a choice: "decide or read".
func (r Right) String() string {
	var names []string
	for i, name := range rights {
		if r&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, " or ")
}

// Token is a secret that requests bring, and what it may do.
type Token struct {
	Hash     [sha256.Size]byte // of the secret
	Rights   Right
	Limiters []string // nil: all
}

// anybody is who asks a server that has no tokens.
var anybody = &Token{Rights: Decide | Read | Administer}

// shortestToken is a length that cannot be guessed.
const shortestToken = 16

// ReadTokens reads a file with a token per line, after which its rights and limiters may follow, as in
// "TOKEN decide,read limiters=api,login". A token without rights has all, one without limiters is for all. Errors name
// the file and the line, and never quote it: each word may be a part of a secret.
func ReadTokens(name string) (tokens []Token, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	lines := make(map[[sha256.Size]byte]int) // of the tokens before
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		t, err := parseToken(words)
		if err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", name, number, err)
		}
		if before := lines[t.Hash]; before > 0 {
			return nil, fmt.Errorf("%s, line %d: the token of line %d again: put all its rights and limiters into one "+
				"line", name, number, before)
		}
		lines[t.Hash] = number
		tokens = append(tokens, t)
	}
	if tokens == nil {
		return nil, fmt.Errorf("%s has no token: write one into it, such as that of \"openssl rand -hex 32\"", name)
	}
	return tokens, nil
}

var errAfterToken = errors.New("after the token may follow its rights, of " + strings.Join(rights, ", ") +
	" with commas between, and limiters=NAME,NAME without spaces: nothing else, and neither of them twice")

func parseToken(words []string) (Token, error) {
	if len(words[0]) < shortestToken {
		return Token{}, fmt.Errorf("a token must have at least %d characters and no spaces, such as those of "+
			"\"openssl rand -hex 32\"", shortestToken)
	}
	t := Token{Hash: sha256.Sum256([]byte(words[0]))}
	for _, word := range words[1:] {
		list, areLimiters := strings.CutPrefix(word, "limiters=")
		names := strings.Split(list, ",")
		switch {
		case slices.Contains(names, ""), areLimiters && t.Limiters != nil, !areLimiters && t.Rights != 0:
			return t, errAfterToken
		case areLimiters:
			t.Limiters = names
			continue
		}
		for _, name := range names {
			i := slices.Index(rights, name)
			if i < 0 {
				return t, errAfterToken
			}
			t.Rights |= 1 << i
		}
	}
	if t.Rights == 0 {
		t.Rights = anybody.Rights
	}
	return t, nil
}

// may returns nil if the request's token has one of the rights, for the limiter or, if that is "", for all limiters.
// Else it says why not: 401 without a token that is known, 403 with one that lacks this.
func (s *Server) may(r *http.Request, right Right, limiter string) *problem {
	t, p := s.token(r)
	if p == nil {
		p = t.may(right)
	}
	if p == nil {
		p = t.mayUse(limiter)
	}
	return p
}

// token returns the request's token, of Authorization: Bearer, or Basic as browsers send it. It compares hashes, and
// all of them, so that its duration reveals nothing about the tokens.
func (s *Server) token(r *http.Request) (*Token, *problem) {
	if len(s.config.Tokens) == 0 {
		return anybody, s.local(r)
	}
	kind, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if _, password, ok := r.BasicAuth(); ok {
		kind, secret = "Bearer", password
	}
	sent, found := sha256.Sum256([]byte(secret)), -1
	for i := range s.config.Tokens {
		same := subtle.ConstantTimeCompare(sent[:], s.config.Tokens[i].Hash[:])
		found = subtle.ConstantTimeSelect(same, i, found)
	}
	if found < 0 || !strings.EqualFold(kind, "Bearer") {
		return nil, newProblem(http.StatusUnauthorized, "the header Authorization: Bearer TOKEN is missing or wrong: "+
			"TOKEN is of the server's --token-file, and may also be sent as the password of Basic")
	}
	return &s.config.Tokens[found], nil
}

func (t *Token) may(right Right) *problem {
	if t.Rights&right == 0 {
		return newProblem(http.StatusForbidden, "the token lacks the right %v: the server's --token-file gives it",
			right)
	}
	return nil
}

// mayUse says whether the token is for the limiter, or for all of them if that is "".
func (t *Token) mayUse(limiter string) *problem {
	if t.Limiters == nil || slices.Contains(t.Limiters, limiter) {
		return nil
	}
	is := fmt.Sprintf("is %q", limiter)
	if limiter == "" {
		is = "is missing"
	}
	p := newProblem(http.StatusForbidden, "limiter %s: the token is for %s only", is, strings.Join(t.Limiters, ", "))
	p.Field = "limiter"
	return p
}

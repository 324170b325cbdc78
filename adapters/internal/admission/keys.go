package admission

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// Join returns all of the keys, in one.
func Join[F any](keys []F, call func(F) (string, error)) (string, error) {
	parts := make([]string, len(keys))
	for i, key := range keys {
		part, err := call(key)
		if err != nil {
			return "", err
		}
		if part == "" {
			return "", fmt.Errorf("%w: part %d of Join is empty", ErrNoKey, i)
		}
		parts[i] = escape.Replace(part)
	}
	return strings.Join(parts, "|"), nil
}

// escape keeps different keys different after they are joined.
var escape = strings.NewReplacer("%", "%25", "|", "%7C")

// FirstOf returns the first of the keys that is there. Any error other than ErrNoKey ends the search.
func FirstOf[F any](keys []F, call func(F) (string, error)) (string, error) {
	err := fmt.Errorf("%w: FirstOf has no key functions", ErrNoKey)
	for _, of := range keys {
		var key string
		if key, err = call(of); !errors.Is(err, ErrNoKey) {
			return key, err
		}
	}
	return "", err
}

// Hash returns a function that hashes the key that a key function returned, 43 characters. An empty key stays empty, so
// that it is refused.
func Hash(secret []byte) func(key string, err error) (string, error) {
	secret = bytes.Clone(secret)
	return func(key string, err error) (string, error) {
		if err != nil || key == "" {
			return "", err
		}
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte(key))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)), nil
	}
}

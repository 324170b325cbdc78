package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"
)

// maxBody is the size of a request's body, in bytes: maxRequests with keys of the longest kind
// do not fit, and usual ones do.
const maxBody = 1 << 20

// read the JSON of a request. Unknown fields are refused: a misspelt "tokens" would take one.
func read(w http.ResponseWriter, r *http.Request, into any) *problem {
	// A web page can make a browser send other types to any address without asking it first.
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return newProblem(http.StatusUnsupportedMediaType,
			"the Content-Type is %q: it must be application/json (curl --json sets it)", r.Header.Get("Content-Type"))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return newProblem(http.StatusRequestEntityTooLarge,
			"the body is larger than %d bytes: send fewer requests at once", tooLarge.Limit)
	} else if err != nil {
		return newProblem(http.StatusBadRequest, "the body did not arrive whole")
	}
	// Package json would replace these by U+FFFD, and different keys would become the same one.
	if !utf8.Valid(body) || halfSurrogate(body) {
		return newProblem(http.StatusBadRequest, "the body is not valid UTF-8, or has half of a surrogate pair "+
			"(\\ud800 to \\udfff): encode bytes, as hex for instance")
	}
	if json.Valid(body) { // else decode says why
		if path, why := checkNames(json.NewDecoder(bytes.NewReader(body)), maxDepth); why != "" {
			return invalid(path, why)
		}
	}
	return decode(body, into)
}

// decode the JSON value, and nothing behind it.
func decode(text []byte, into any) *problem {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return explainJSON(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return newProblem(http.StatusBadRequest, "the body has more than one JSON value")
	}
	return nil
}

// maxDepth of a body: that of {"requests": [{}]}.
const maxDepth = 3

// ourLetters are those of all our fields, and none that fold to them.
const ourLetters = "abcdefghijklmnopqrstuvwxyz_"

const notAField = "is not a field that this path knows"

// checkNames checks the names and the nesting of the fields in the next value. Package json takes "KEY" for "key", and
// merges duplicates. If why is not empty, path leads from the value to the fault. It is written only on the way back,
// because clients choose how many elements there are.
func checkNames(decoder *json.Decoder, depth int) (path, why string) {
	token, _ := decoder.Token() // the text is known to be JSON
	open, _ := token.(json.Delim)
	switch {
	case open == 0:
		return "", ""
	case depth == 0:
		return "", "is an object or an array, where none can be"
	}
	seen := make(map[string]bool)
	for i := 0; decoder.More(); i++ {
		if i == maxRequests {
			return "", fmt.Sprintf("has too many elements: at most %d are allowed", maxRequests)
		}
		name := ""
		if open == '{' {
			token, _ = decoder.Token()
			name, _ = token.(string)
			switch {
			case strings.Trim(name, ourLetters) != "" || len(name) > longestName:
				return bounded(name, longestName), notAField
			case seen[name]:
				return name, "is there twice: each field must be there once"
			}
			seen[name] = true
		}
		if path, why = checkNames(decoder, depth-1); why == "" {
			continue
		}
		if open == '[' {
			name = fmt.Sprintf("[%d]", i)
		}
		if path != "" && path[0] != '[' {
			name += "."
		}
		return name + path, why
	}
	_, _ = decoder.Token() // what closes it
	return "", ""
}

// halfSurrogate says whether a string in the JSON has half of a surrogate pair: decoded, it has one U+FFFD more than
// the text spells out.
func halfSurrogate(body []byte) bool {
	if !bytes.Contains(bytes.ToLower(body), []byte(`\ud`)) {
		return false
	}
	escapes := bytes.ToLower(bytes.ReplaceAll(body, []byte(`\\`), nil)) // \\ufffd is a backslash, and letters
	spelt := bytes.Count(body, []byte("\uFFFD")) + bytes.Count(escapes, []byte(`\ufffd`))
	decoded := 0
	for decoder := json.NewDecoder(bytes.NewReader(body)); ; {
		token, err := decoder.Token()
		if err != nil {
			return decoded > spelt
		}
		if text, ok := token.(string); ok {
			decoded += strings.Count(text, "\uFFFD")
		}
	}
}

func explainJSON(err error) *problem {
	var kind *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &kind) && kind.Field != "":
		return invalid(strings.TrimPrefix(kind.Field, "ask."),
			fmt.Sprintf("is a %s: it must be %s", kind.Value, kindName(kind)))
	case errors.As(err, &kind):
		return newProblem(http.StatusBadRequest, "the body is a JSON %s: it must be an object", kind.Value)
	case errors.As(err, &syntax):
		return newProblem(http.StatusBadRequest, "the body is not JSON: %v, at byte %d", syntax, syntax.Offset)
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return newProblem(http.StatusBadRequest, "the body is not JSON: it ends too early")
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return invalid(strings.Trim(name, `"`), notAField)
	}
	return newProblem(http.StatusBadRequest, "the body is not JSON: %v", err)
}

func kindName(err *json.UnmarshalTypeError) string {
	switch err.Type.Kind().String() {
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	case "int64":
		return "a whole number"
	case "slice":
		return "an array"
	}
	return "an object"
}

package serve

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"reflect"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxBody is the size of a request's body, in bytes: maxRequests with keys of the longest kind
// do not fit, and usual ones do.
const maxBody = 1 << 20

// read the JSON of a request. Unknown fields are refused: a misspelt "tokens" would take one. Version 2 of package json
// also refuses what version 1 takes silently: names in other letters ("KEY"), names that are there twice, and text that
// is not UTF-8, where two keys would become the same one.
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
	err = json.Unmarshal(body, into, json.RejectUnknownMembers(true))
	var syntax *jsontext.SyntacticError
	var value *json.SemanticError
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName) && errors.As(err, &syntax):
		return invalid(pathOf(syntax.JSONPointer), "is there twice: each field must be there once")
	case errors.As(err, &syntax):
		return newProblem(http.StatusBadRequest, "the body is not JSON in UTF-8: %v, at byte %d", syntax.Err,
			syntax.ByteOffset)
	case errors.Is(err, json.ErrUnknownName) && errors.As(err, &value):
		return invalid(pathOf(value.JSONPointer), "is not a field that this path knows")
	case errors.As(err, &value) && value.JSONPointer == "":
		return newProblem(http.StatusBadRequest, "the body must be a JSON object")
	case errors.As(err, &value):
		return invalid(pathOf(value.JSONPointer), "must be "+kindName(value.GoType))
	case err != nil:
		return newProblem(http.StatusBadRequest, "the body is not JSON: %v", err)
	}
	return nil
}

// pathOf names a field as people do: "requests[2].tokens".
func pathOf(pointer jsontext.Pointer) string {
	path := ""
	for token := range pointer.Tokens() {
		switch _, err := strconv.ParseUint(token, 10, 64); {
		case err == nil:
			path += "[" + token + "]"
		case path == "":
			path = token
		default:
			path += "." + token
		}
		if len(path) > longestName { // a client may nest as deep as it likes
			break
		}
	}
	return bounded(path, longestName)
}

func kindName(of reflect.Type) string {
	for of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch of.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int64:
		return "a whole number"
	case reflect.Slice:
		return "an array"
	}
	return "an object"
}

package top

import "strings"

// counters of a sketch.
const counters = 100

// sketch counts the most frequent keys of a stream in bounded memory, by the algorithm Space-Saving (Metwally, Agrawal
// and El Abbadi, "Efficient computation of frequent and top-k elements in data streams", 2005).
//
// Of n requests that were counted, a key's number is never too high, and at most n/100 too low. A key without a number
// counts as 0: so no key with more than n/100 requests is missing.
type sketch struct {
	counters []counter      // at most as many as the constant says
	index    map[string]int // of a key's counter
}

// counter of a key. Its count is never too low. It is too high by over at most: by what the counter had counted before
// the key took it.
type counter struct {
	key         string
	count, over int64
}

func (s *sketch) add(key string, n int64) {
	if i, ok := s.index[key]; ok {
		s.counters[i].count += n
		return
	}
	if s.index == nil {
		s.index = make(map[string]int)
	}
	key = strings.Clone(key) // the caller's may be a part of a larger string, or of a buffer that is used again
	i := len(s.counters)
	if i < counters {
		s.counters = append(s.counters, counter{key: key, count: n})
	} else {
		i = 0
		for j := range s.counters { // as long as a hundredth of a round trip, and no key that is counted comes here
			if s.counters[j].count < s.counters[i].count {
				i = j
			}
		}
		c := &s.counters[i]
		delete(s.index, c.key)
		*c = counter{key: key, count: c.count + n, over: c.count}
	}
	s.index[key] = i
}

// atLeast is the key's number.
func (c *counter) atLeast() int64 { return c.count - c.over }

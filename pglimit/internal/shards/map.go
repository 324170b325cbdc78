package shards

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// Map says which node has which keys, as of when it was read.
type Map struct{ shards []Shard }

// Shard has the keys whose hash is from From up to that of the next one.
type Shard struct {
	From int32
	Node string // host:port; empty if it has no active placement, or several
}

// NewMap makes a map of the shards in the order of From: the first hash of each, and the last.
func NewMap(from, to []int32, nodes []string) (*Map, error) {
	if len(from) == 0 || len(from) != len(to) || len(from) != len(nodes) {
		return nil, fmt.Errorf("%d, %d and %d numbers of shards", len(from), len(to), len(nodes))
	}
	m := new(Map)
	next := int64(math.MinInt32)
	for i := range from {
		if int64(from[i]) != next || to[i] < from[i] {
			return nil, errors.New("the shards have gaps or overlap")
		}
		next = int64(to[i]) + 1
		m.shards = append(m.shards, Shard{from[i], nodes[i]})
	}
	if next != math.MaxInt32+1 {
		return nil, errors.New("the shards have gaps or overlap")
	}
	return m, nil
}

// Of is the number of the key's shard, and the shard.
func (m *Map) Of(key string) (int, Shard) {
	hash := Hash(key)
	i, found := slices.BinarySearchFunc(m.shards, hash, func(s Shard, hash int32) int {
		switch {
		case s.From < hash:
			return -1
		case s.From > hash:
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	return i, m.shards[i]
}

// Part is which of n equal parts of all hashes has the key's: the lane of a key. It does not depend on the map.
func Part(key string, n int) int {
	return int(uint64(uint32(Hash(key))^1<<31) * uint64(n) >> 32)
}

// Package shards knows which shard of a table that Citus distributes has a key.
package shards

import (
	"encoding/binary"
	"math/bits"
)

// Hash is Postgres's hash of a text in a deterministic collation (hashtext), by which Citus distributes: Bob
// Jenkins's lookup3 (https://burtleburtle.net/bob/c/lookup3.c), hashlittle with Postgres's initial value, on a
// little-endian server.
func Hash(key string) int32 {
	a := 0x9e3779b9 + uint32(len(key)) + 3923095
	b, c := a, a
	rest := []byte(key)
	for ; len(rest) >= 12; rest = rest[12:] {
		a += binary.LittleEndian.Uint32(rest)
		b += binary.LittleEndian.Uint32(rest[4:])
		c += binary.LittleEndian.Uint32(rest[8:])
		a, b, c = mix(a, b, c)
	}
	for i, char := range rest {
		switch n := uint32(char); {
		case i < 4:
			a += n << (8 * i)
		case i < 8:
			b += n << (8 * (i - 4))
		default: // the lowest byte of c is for the length
			c += n << (8 * (i - 7))
		}
	}
	return int32(final(a, b, c))
}

func mix(a, b, c uint32) (uint32, uint32, uint32) {
	a = a - c ^ bits.RotateLeft32(c, 4)
	c += b
	b = b - a ^ bits.RotateLeft32(a, 6)
	a += c
	c = c - b ^ bits.RotateLeft32(b, 8)
	b += a
	a = a - c ^ bits.RotateLeft32(c, 16)
	c += b
	b = b - a ^ bits.RotateLeft32(a, 19)
	a += c
	c = c - b ^ bits.RotateLeft32(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	c = (c ^ b) - bits.RotateLeft32(b, 14)
	a = (a ^ c) - bits.RotateLeft32(c, 11)
	b = (b ^ a) - bits.RotateLeft32(a, 25)
	c = (c ^ b) - bits.RotateLeft32(b, 16)
	a = (a ^ c) - bits.RotateLeft32(c, 4)
	b = (b ^ a) - bits.RotateLeft32(a, 14)
	return (c ^ b) - bits.RotateLeft32(b, 24)
}

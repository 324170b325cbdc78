package pgserver

import "syscall"

// freeBytes of the file system that the folder is on. 0: there is no such folder.
func freeBytes(folder string) uint64 {
	var s syscall.Statfs_t
	if syscall.Statfs(folder, &s) != nil {
		return 0
	}
	return s.Bavail * uint64(s.Bsize) //nolint:gosec // a size is not negative
}

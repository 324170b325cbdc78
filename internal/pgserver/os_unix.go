//go:build unix

package pgserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const hasGuard = true

// joinGroup puts the command into a process group, 0 into a new one that it leads.
// Outside of our group it does not receive the terminal's Ctrl-C.
func joinGroup(cmd *exec.Cmd, group int) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pgid: group}
}

// account is a user that a server runs as. nil: the user of this process.
type account struct {
	name     string
	uid, gid uint32
}

// unprivileged returns nil or, if this process is root, an account that Postgres can run
// as.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil && uid != 0 {
			return &account{name, uint32(uid), uint32(gid)}, nil
		}
	}
	return nil, errors.New("postgres refuses to run as root, and there is no user postgres or nobody to run it as: run as another user")
}

// runs makes the command run as the account. Call joinGroup before it.
func (a *account) runs(cmd *exec.Cmd) {
	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
}

func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// tempDir makes a folder that the account can reach and nobody else can enter. Root's own
// temporary folder may be inside one that others cannot enter.
func (a *account) tempDir() (string, error) {
	for _, parent := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if a != nil && !isOpenToAll(parent) {
			continue
		}
		return a.makeDir(parent)
	}
	return "", fmt.Errorf("the user %s can get to none of %s, /tmp and /var/tmp: set TMPDIR to a folder that it can", a.name, os.TempDir())
}

// memoryDir is a tempDir in memory. It returns "" where the system has no folder for that, or too
// little room in it.
//
// To make and to drop a database takes a tenth of the time there, and tests do so all the time.
func (a *account) memoryDir() string {
	const parent, room = "/dev/shm", 2 << 20 // kilobytes
	if a != nil && !isOpenToAll(parent) || freeKilobytes(parent) < room {
		return ""
	}
	dir, _ := a.makeDir(parent)
	return dir
}

// freeKilobytes of the file system that the folder is on. 0: there is no such folder.
func freeKilobytes(folder string) int64 {
	table, _ := run(exec.Command("df", "-Pk", folder))
	if fields := strings.Fields(table[strings.LastIndex(table, "\n")+1:]); len(fields) == 6 {
		free, _ := strconv.ParseInt(fields[3], 10, 64)
		return free
	}
	return 0
}

// makeDir makes a folder of the account's that nobody else can enter.
func (a *account) makeDir(parent string) (string, error) {
	dir, err := os.MkdirTemp(parent, "pglimit-postgres-")
	if err != nil {
		return "", err
	}
	if err := a.own(dir); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// cacheDir is where binaries are kept that the account can run: root's own cache may be in a folder
// that others cannot enter.
func (a *account) cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if a != nil && (err != nil || !isOpenToAll(dir)) {
		dir, err = "/var/cache", nil
	}
	return filepath.Join(dir, "pglimit"), err
}

// openToAll lets everybody read and run what is in the folder, whatever our umask is.
func openToAll(folder string) error {
	_, err := run(exec.Command("chmod", "-R", "a+rX", folder))
	return err
}

// isOpenToAll says whether anybody may pass through the folder.
func isOpenToAll(folder string) bool {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return false
	}
	for ; ; folder = filepath.Dir(folder) {
		info, err := os.Stat(folder)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if folder == filepath.Dir(folder) {
			return true
		}
	}
}

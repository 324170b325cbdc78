//go:build unix && !linux

package main

import "syscall"

func adopt() {}

func diesWithParent(*syscall.SysProcAttr) {}

// signalAll signals the command's group, because nothing lists its descendants.
func signalAll(s syscall.Signal, group int) { _ = syscall.Kill(-group, s) }

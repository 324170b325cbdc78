package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// endedBySignal is the cause of a context that [untilSignal] ended.
type endedBySignal struct{ os.Signal }

func (e endedBySignal) Error() string { return "ended by " + e.String() }

// exitCode is what a shell reports for a process that the signal killed: 130 for
// Ctrl-C.
func (e endedBySignal) exitCode() int {
	if number, ok := e.Signal.(syscall.Signal); ok {
		return 128 + int(number)
	}
	return 130
}

// untilSignal ends the context at the first Ctrl-C, SIGTERM, or SIGHUP (the terminal was closed), so that commands can
// finish tidily. After that, signals have their usual effect: a second one kills. If SIGHUP is ignored, as under nohup,
// it stays ignored. For "serve" it means something else: see reloadAtHUP.
func untilSignal(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			cancel(endedBySignal{s})
		case <-ctx.Done():
			signal.Stop(signals)
		}
	}()
	return ctx, func() { cancel(nil) }
}

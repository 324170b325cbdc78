package group

import (
	"errors"
	"slices"

	"github.com/pglimit/ratelimit/pglimit/internal/flight"
	"github.com/pglimit/ratelimit/pglimit/rate"
)

// ask asks the strategy and answers the callers. If the strategy takes nothing, the groups for a
// row that somebody holds are put aside, and the others are asked about again; or each half of
// them is, in the end each group alone. So only the callers of the group to blame get an error.
// The error is one for which no group is to blame: asking about others would fail too.
func (l *Lane) ask(f *flight.Flight, waiters []*waiter) error {
	waiters = slices.DeleteFunc(slices.Clone(waiters), func(w *waiter) bool { return w.Left() || l.denyKnown(f, w) })
	if len(waiters) == 0 {
		return nil // everybody has an answer, or has left and is not charged
	}
	groups := make([][]rate.Request, len(waiters))
	for i, w := range waiters {
		groups[i] = w.Request
	}
	if len(groups) == 1 { // several are impatient in any case
		groups[0] = impatient(groups[0])
	}
	decisions, err := l.calls.Send(f.Ctx, groups)
	if err == nil {
		l.tell(f, waiters, decisions)
		return nil
	}
	if !errors.Is(err, rate.ErrNothingTaken) {
		err = l.Blame(err)
		l.Stats.Lost.Add(l.fail(f, waiters, err))
		return err
	}
	if rest := l.putAside(f, waiters, err); len(rest) < len(waiters) {
		return l.ask(f, rest)
	}
	if len(waiters) == 1 {
		l.fail(f, waiters, l.Blame(err))
		return nil
	}
	half := len(waiters) / 2
	if err := l.ask(f, waiters[:half]); err != nil {
		l.fail(f, waiters[half:], err) // without asking once more
		return err
	}
	return l.ask(f, waiters[half:])
}

// impatient is a group that does not wait for held rows. As it came, it does.
func impatient(group []rate.Request) []rate.Request {
	group = slices.Clone(group)
	for i := range group {
		group[i].Impatient = true
	}
	return group
}

// denyKnown answers a waiter whose group the call before has found to be denied.
func (l *Lane) denyKnown(f *flight.Flight, w *waiter) bool {
	decisions, known := l.calls.Recall(w.Request)
	if known && w.Answer(decisions, nil) {
		f.Waiting.Add(-1)
	}
	return known
}

// tell the callers. Tokens granted to callers who have left are given back.
func (l *Lane) tell(f *flight.Flight, waiters []*waiter, decisions [][]rate.Decision) {
	var refunds []rate.Refund
	for i, w := range waiters {
		group := w.Request
		if w.Answer(decisions[i], nil) {
			f.Waiting.Add(-1)
			continue
		}
		for j, d := range decisions[i] {
			if d.Granted > 0 {
				refunds = append(refunds, rate.Refund{Request: group[j], At: d.At})
			}
		}
	}
	l.GiveBack(f, refunds, l.calls.GiveBack) // the next groups are sent after it
}

// fail gives the error to the callers. It returns how many tokens may have been taken for callers
// who have left, and so do not get the error.
func (l *Lane) fail(f *flight.Flight, waiters []*waiter, err error) (lost int64) {
	for _, w := range waiters {
		if w.Answer(nil, err) {
			f.Waiting.Add(-1)
			continue
		}
		for i := range w.Request {
			lost += w.Request[i].Tokens
		}
	}
	return lost
}

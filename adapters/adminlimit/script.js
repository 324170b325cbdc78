// Shows new numbers without a reload. All else works without it.
"use strict"

const every = Number(document.getElementById("live")?.dataset.every ?? 0) * 1000

// same finds what had the focus in the part that has come in its place.
function same(old, live) {
	const name = (e) => e.getAttribute("href") ?? e.getAttribute("aria-labelledby")
	return [...live.querySelectorAll(old.localName)].find((e) => name(e) === name(old))
}

async function refresh() {
	const before = document.getElementById("live")
	if (document.hidden || (!getSelection().isCollapsed && before.contains(getSelection().anchorNode))) return
	const answer = await fetch(location.href, {redirect: "error"}).catch(() => null)
	const now = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live")
	document.getElementById("old").hidden = Boolean(now)
	if (!now) return
	const focused = before.contains(document.activeElement) ? document.activeElement : null
	const scrolled = [...before.querySelectorAll(".scroll")].map((e) => e.scrollLeft)
	before.replaceWith(now)
	now.querySelectorAll(".scroll").forEach((e, i) => { e.scrollLeft = scrolled[i] ?? 0 })
	if (focused) same(focused, now)?.focus({preventScroll: true})
}

if (every > 0) setInterval(refresh, every)

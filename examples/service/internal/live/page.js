// Draws the samples that the server sends: one event a second, with a number for each line of
// each panel, or null where it is not known.
"use strict"

const left = 66, right = 396, above = 28, below = 180 // of the pictures, see viewBox
const kept = 120_000 // milliseconds
const samples = []
let paused = false, drawing = false

// units write a number with at most three digits.
const short = new Intl.NumberFormat("en", {maximumSignificantDigits: 3, notation: "compact"})
function written(value, unit) {
	if (value === null) return "–"
	if (unit !== "seconds") return short.format(value)
	if (value < 1e-3) return short.format(value * 1e6) + " µs"
	return value < 1 ? short.format(value * 1e3) + " ms" : short.format(value) + " s"
}

// scale returns the ticks of an axis, and where on it a value is.
function scale(values, log) {
	const place = (share) => below - share * (below - above)
	if (log) {
		const low = Math.floor(Math.log10(Math.min(...values, 1e-3))), high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...values, 1e-3))))
		const ticks = Array.from({length: high - low + 1}, (_, i) => 10 ** (low + i))
		return [ticks, (v) => place((Math.log10(Math.max(v, ticks[0])) - low) / (high - low))]
	}
	const most = Math.max(...values, 1), power = 10 ** Math.floor(Math.log10(most / 4))
	const step = Math.max([1, 2, 5, 10].find((n) => n * power * 4 >= most) * power, most < 4 ? 1 : 0)
	const ticks = Array.from({length: Math.ceil(most / step) + 1}, (_, i) => i * step)
	return [ticks, (v) => place(v / ticks.at(-1))]
}

function element(name, attributes, text = "") {
	const e = document.createElementNS("http://www.w3.org/2000/svg", name)
	for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value)
	e.textContent = text
	return e
}

function draw(figure, panel) {
	const unit = figure.dataset.unit, lines = figure.querySelectorAll("li"), now = samples.at(-1).at
	const numbers = (i) => samples.map((s) => s.panels[panel][i]).filter((v) => v !== null)
	const [ticks, y] = scale([...lines].flatMap((_, i) => numbers(i)), "log" in figure.dataset)
	const x = (at) => right - (now - at) / kept * (right - left)

	const parts = [
		element("text", {x: 2, y: 16}, unit + ("log" in figure.dataset ? " (log scale)" : "")),
		element("path", {class: "grid", d: ticks.map((t) => `M${left} ${y(t)}H${right}`).join("")}),
		element("path", {class: "frame", d: `M${left} ${above}V${below}H${right}` + [0, 1, 2, 3, 4].map((n) => `M${x(now - n * 30_000)} ${below}v4`).join("")}),
		element("text", {x: left, y: below + 22}, "2 minutes ago"), element("text", {x: right, y: below + 22, class: "y"}, "now"),
		...ticks.map((t) => element("text", {x: left - 6, y: y(t) + 5, class: "y"}, written(t, unit))),
	]
	const said = []
	lines.forEach((line, i) => {
		let d = "", pen = "M"
		for (const s of samples) {
			const v = s.panels[panel][i]
			if (v !== null) d += `${pen}${x(s.at).toFixed(1)} ${y(v).toFixed(1)}`
			pen = v === null ? "M" : "L"
		}
		const group = element("g", {class: line.className})
		group.append(element("path", {class: "l", d: d}))
		parts.push(group)

		const value = written(samples.at(-1).panels[panel][i], unit), all = numbers(i)
		line.querySelector("b").textContent = value
		said.push(`${line.textContent.replace(value, "").trim()}: ${value} now` + (all.length ? `, from ${written(Math.min(...all), unit)} to ${written(Math.max(...all), unit)} in two minutes.` : "."))
	})
	figure.querySelector(".plot g").replaceChildren(...parts)
	figure.querySelector("desc").textContent = said.join(" ") + (unit === "seconds" ? "" : ` Unit: ${unit}.`)
	if (figure.querySelector("details").open) list(figure, panel)
}

// list fills the table behind a picture, newest numbers first.
function list(figure, panel) {
	const now = samples.at(-1).at
	figure.querySelector("tbody").replaceChildren(...samples.toReversed().map((s) => {
		const row = document.createElement("tr"), head = document.createElement("th")
		head.scope = "row"
		head.textContent = Math.round((now - s.at) / 1000)
		row.append(head, ...s.panels[panel].map((v) => {
			const cell = document.createElement("td")
			cell.textContent = written(v, figure.dataset.unit)
			return cell
		}))
		return row
	}))
}

// show all panels, once per frame, however many samples came.
function show() {
	if (drawing || paused || samples.length === 0) return
	drawing = true
	requestAnimationFrame(() => {
		drawing = false
		document.querySelectorAll("figure").forEach(draw)
	})
}

const state = document.getElementById("state"), pause = document.getElementById("pause")
const events = new EventSource("live/events")
events.onopen = () => { state.textContent = "Connected." }
events.onerror = () => { state.textContent = "Disconnected. Trying again …" }
events.onmessage = (event) => {
	samples.push(JSON.parse(event.data))
	while (samples.at(-1).at - samples[0].at > kept) samples.shift()
	show()
}
pause.onclick = () => {
	paused = !paused
	pause.setAttribute("aria-pressed", paused)
	show()
}
document.querySelectorAll("details").forEach((d) => { d.ontoggle = show })

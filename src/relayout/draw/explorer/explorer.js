// The page: inputs, the state that they make, and what is drawn of it.

const table = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const SLIDER_LEAST = 32; // numbers that a slider can reach at least
const COUNTED = 50000; // elements whose places are compared one by one at most

let state = stateOf(location.hash);
let model = understood(state, table);
let cells = {tensor: new Map(), a: new Map(), b: new Map()};
let shown = {tensor: "", a: "", b: ""}; // what the pictures were drawn from: a picture is kept while it is the same
let first = {}; // rows of memory that are drawn, by side
let lengths = {}; // of rows of memory, by side
let found = null; // what is selected

// What a fragment says; a data type that there is not is the usual one.
function stateOf(fragment) {
  const said = readFragment(fragment, table.start);
  return Object.hasOwn(table.dtypes, said.dtype) ? said : {...said, dtype: table.start.dtype};
}

// Change the state, draw it, and put it into the address.
function change(part, keepSliders = false) {
  state = {...state, ...part};
  model = understood(state, table);
  render(keepSliders);
  remember();
}

function remember() {
  const fragment = writeFragment(state);
  if (fragment === location.hash) return;
  try {
    history.replaceState(null, "", fragment);
  } catch { // browsers count how often a page does that, and refuse it when sizes are dragged fast
    setTimeout(remember, 1000);
  }
}

// Draw everything that the state says.
function render(keepSliders = false) {
  fillInputs();
  for (const input of ["format", "dims", "beside"]) {
    const message = model.errors[input] || "";
    by(`${input}-error`).textContent = message;
    by(input).setAttribute("aria-invalid", String(Boolean(message)));
  }
  by("axes").textContent = model.axes ? `(${model.axes.join(", ") || "none"})` : "";
  // While an input means nothing, the pictures of the last that did stay, pale and out of reach.
  by("main").inert = by("sliders").disabled = !model.a;
  by("main").classList.toggle("stale", !model.a);
  if (!model.a) return;
  by("main").hidden = false;
  if (!keepSliders) drawSliders();
  for (const side of ["a", "b"]) {
    document.querySelectorAll(`.name-${side}`).forEach((span) => {
      span.textContent = state[side === "a" ? "format" : "beside"].trim();
    });
  }
  by("b").hidden = !model.b;
  fillColours();
  if (state.side === "b" && !model.b) state.side = "a";
  const span = model[state.side].span;
  state.offset = Math.max(0, Math.min(state.offset, span - 1));
  drawLegend(by("legend"), model, paint());
  for (const side of ["a", "b"]) if (model[side]) describe(side);
  select(state.side, state.offset);
}

const paint = () => paintOf(model.a, state.colour);

// Put the state into inputs, but not into the one that is being written in.
function fillInputs() {
  for (const name of ["format", "dims", "beside", "dtype"]) {
    if (document.activeElement !== by(name)) by(name).value = state[name];
  }
}

function fillColours() {
  const names = paints(model.a).map(({name}) => name);
  const chosen = paint();
  by("colour").replaceChildren(...names.map((name) => make("option", {}, name)));
  if (chosen) by("colour").value = chosen.name;
}

// One slider an axis, as long as twice the size.
function drawSliders() {
  const parts = model.dims.map((size, axis) => {
    const name = model.axes[axis];
    const slider = make("input", {type: "range", min: 1, max: Math.max(SLIDER_LEAST, 2 * size), value: size, "data-axis": axis});
    return make("label", {}, WORDS[name] ? `${name}, ${WORDS[name]}` : name, slider, make("output", {}, String(size)));
  });
  by("sliders").replaceChildren(by("sliders").querySelector("legend"), ...parts);
  by("sliders").hidden = !parts.length;
}

// Formula and facts of one side.
function describe(side) {
  const layout = model[side];
  layout.format = {axes: layout.axes, digits: layout.digits.map((digit) => ({...digit, extent: digit.open ? null : digit.extent}))};
  by(side).querySelector(".formula").textContent = `offset = ${formulaOf(layout)}`;
  const pairs = facts(layout, model.bits, table);
  if (side === "b") pairs.push(["beside", differences()]);
  drawFacts(by(side).querySelector("dl"), pairs);
}

// How many elements lie elsewhere in the second format.
function differences() {
  const {a, b, across} = model;
  if (a.size > COUNTED) return `not counted: more than ${counted(COUNTED)} elements`;
  let moved = 0;
  for (let n = 0; n < a.size; n += 1) {
    const index = sliceAt(a, a.dims.map((_, axis) => axis), n), other = [];
    across.forEach((axis, k) => { other[axis] = index[k]; });
    if (offsetOf(a, index) !== offsetOf(b, other)) moved += 1;
  }
  if (moved) return `${counted(moved)} of ${plural(a.size, "element")} lie at another offset than in the first format`;
  return a.span === b.span ? "the same bytes as the first format: no conversion is needed" : "all elements lie at the same offsets";
}

// Stay at an offset of one side: draw the parts that have it, mark it, say it, remember it.
function select(side, offset, focus = null) {
  found = located(model, side, offset);
  Object.assign(state, {side, offset});
  drawPictures();
  mark(found, "at");
  tell(found);
  for (const set of Object.values(cells)) for (const cell of set.values()) cell.tabIndex = -1;
  for (const [name, set] of Object.entries(cells)) {
    const own = name === "tensor" ? "a" : name;
    const chosen = (found && found[own] && set.get(found[own].offset)) || set.values().next().value;
    if (chosen) chosen.tabIndex = 0;
    if (chosen && name === focus) chosen.focus();
  }
  fillGoto();
}

// Draw for another width of the window: rows of memory may have another length.
function drawAgain() {
  if (["a", "b"].every((side) => !model[side] || lengths[side] === rowLength(model, side))) return;
  first = {};
  select(state.side, state.offset);
}

function drawPictures() {
  const index = found && found.index;
  const frame = framed(model.a, index);
  const same = JSON.stringify([state.format, model.dims, state.colour, state.dtype, state.beside]);
  const at = model.a.size ? JSON.stringify([same, frame]) : "";
  if (at !== shown.tensor || !at) {
    if (at) cells.tensor = drawTensor(by("tensor"), model, frame, paint());
    else [cells.tensor] = [new Map(), by("tensor").replaceChildren()];
    by("tensor-left").textContent = model.a.size ? tensorLeft(model.a, frame) : "A size is 0: there are no elements.";
    shown.tensor = at;
  }
  for (const side of ["a", "b"]) {
    if (model[side]) drawSide(side, same);
    else [cells[side], shown[side]] = [new Map(), ""];
  }
}

function drawSide(side, same) {
  const here = found && found[side] ? found[side].offset : (first[side] || 0) * rowLength(model, side);
  const view = windowOf(model, side, Math.min(here, Math.max(0, model[side].span - 1)), first[side]);
  first[side] = view.first;
  lengths[side] = view.length;
  const now = JSON.stringify([same, view]);
  if (now === shown[side]) return;
  shown[side] = now;
  cells[side] = drawMemory(by(side).querySelector(".lines"), model, side, view, paint());
  const last = Math.min(view.count, view.first + ROWS);
  const all = view.count > ROWS;
  const note = by(side).querySelector(".left");
  note.hidden = !all;
  note.querySelector(".earlier").disabled = view.first === 0;
  note.querySelector(".later").disabled = last === view.count;
  note.querySelector("span").textContent = `offsets ${counted(view.first * view.length)}–${
    counted(Math.min(model[side].span, last * view.length) - 1)} of ${counted(model[side].span)} are drawn`;
}

// Mark a place in all pictures: "at" where it is selected, "here" where it is pointed at.
function mark(place, sign) {
  document.querySelectorAll(`.cell.${sign}`).forEach((cell) => {
    cell.classList.remove(sign);
    if (sign === "at") cell.removeAttribute("aria-selected");
  });
  if (!place) return;
  const marked = [place.a && place.index && cells.tensor.get(place.a.offset), ...["a", "b"].map((side) => place[side] && cells[side].get(place[side].offset))];
  for (const cell of marked.filter(Boolean)) {
    cell.classList.add(sign);
    if (sign === "at") cell.setAttribute("aria-selected", "true");
  }
}

// Underline what a cache line of the first format brings along with an element.
function underline(place) {
  const line = place && place.a && place.index ? lineOf(place.a.offset, model.bits) : null;
  for (const [offset, cell] of cells.tensor) cell.classList.toggle("line", lineOf(offset, model.bits) === line);
}

// Say where an element lies: in a sentence, which screen readers read, and in a table.
function tell(place) {
  underline(place);
  if (!place) {
    by("said").textContent = "There are no elements.";
    by("places").replaceChildren();
    return;
  }
  const what = place.index ? spelledIndex(model.axes, place.index) : paddingWords(model[place.side], place.place);
  const sides = ["a", "b"].filter((side) => model[side] && place[side]);
  const words = sides.map((side) => {
    const {offset} = place[side];
    return `in ${state[side === "a" ? "format" : "beside"].trim()} offset ${counted(offset)}, byte ${
      counted(byteOf(offset, model.bits))}, cache line ${counted(lineOf(offset, model.bits))}`;
  });
  by("said").textContent = `${what}: ${words.join("; ")}.`;
  const rows = sides.filter((side) => place[side].index).map((side) => {
    const layout = model[side], values = digitsAt(layout, place[side].index);
    const digits = layout.digits.map((digit, k) => `${digit.name}=${values[k]}`).join("  ");
    const sum = layout.digits.map((digit, k) => `${values[k]}*${digit.stride}`).join(" + ") || "0";
    return make("tr", {}, make("th", {scope: "row"}, state[side === "a" ? "format" : "beside"].trim()),
      make("td", {class: "digits"}, digits), make("td", {class: "digits"}, `${sum} = ${place[side].offset}`));
  });
  by("places").replaceChildren(...rows);
}

function fillGoto() {
  const own = found && found.a;
  const values = {"go-index": found && found.index ? found.index.join(",") : "", "go-offset": own ? own.offset : "",
    "go-byte": own ? byteOf(own.offset, model.bits) : ""};
  for (const [id, value] of Object.entries(values)) if (document.activeElement !== by(id)) by(id).value = value;
  by("go-error").textContent = "";
}

// Go where a field says: an index, an offset or a byte of the first format.
function goTo(what, text) {
  const fail = (message) => { by("go-error").textContent = message; };
  const {span} = model.a;
  if (what === "index") {
    let index;
    try { index = readDims(text); } catch (error) { return fail(error.message.replace("sizes", "indices")); }
    if (index.length !== model.dims.length) return fail(`an index has ${model.dims.length} numbers (${model.axes.join(", ")}); ${index.length} are given`);
    const wrong = index.findIndex((i, axis) => i >= model.dims[axis]);
    if (wrong >= 0) return fail(`index ${index[wrong]} of axis ${model.axes[wrong]} is out of bounds: 0 <= index < ${model.dims[wrong]}`);
    return leap("a", offsetOf(model.a, index));
  }
  if (!/^[0-9]{1,15}$/.test(text.trim())) return fail(`'${text.trim()}' is no whole number`);
  const number = Number(text), offset = what === "byte" ? Math.floor((number * 8) / model.bits) : number;
  if (offset >= span) return fail(`${what} ${counted(number)} is outside: the tensor has ${what === "byte"
    ? `${counted(Math.ceil((span * model.bits) / 8))} bytes` : plural(span, "place")}, counted from 0`);
  return leap("a", offset);
}

function leap(side, offset, focus = null) {
  const {span} = model[side];
  select(side, Math.max(0, Math.min(offset, span - 1)), focus);
  remember();
}

// How far a key steps in memory, from an offset.
function memoryStep(key, control, offset, length, span) {
  const row = offset - (offset % length);
  return {
    ArrowLeft: offset - 1, ArrowRight: offset + 1, ArrowUp: offset - length, ArrowDown: offset + length,
    PageUp: offset - length * ROWS, PageDown: offset + length * ROWS,
    Home: control ? 0 : row, End: control ? span - 1 : row + length - 1,
  }[key];
}

// The index that a key steps to in the tensor.
function tensorStep(key, control, index) {
  const frame = framed(model.a, index), next = [...index], {dims} = model.a;
  const move = (axis, by_) => {
    if (axis !== null) next[axis] = Math.max(0, Math.min(dims[axis] - 1, next[axis] + by_));
  };
  const slice = (by_) => {
    const count = product(frame.outer.map((a) => dims[a]));
    const number = frame.outer.reduce((n, a) => n * dims[a] + index[a], 0) + by_;
    const base = sliceAt(model.a, frame.outer, Math.max(0, Math.min(count - 1, number)));
    for (const axis of frame.outer) next[axis] = base[axis];
  };
  const steps = {
    ArrowLeft: () => move(frame.column, -1), ArrowRight: () => move(frame.column, 1),
    ArrowUp: () => move(frame.row, -1), ArrowDown: () => move(frame.row, 1),
    PageUp: () => slice(-1), PageDown: () => slice(1),
    Home: () => (control ? next.fill(0) : move(frame.column, -Infinity)),
    End: () => (control ? dims.forEach((size, axis) => { next[axis] = size - 1; }) : move(frame.column, Infinity)),
  };
  if (!Object.hasOwn(steps, key)) return null;
  steps[key]();
  return next;
}

function pressed(event) {
  const cell = event.target.closest("td.cell");
  if (!cell || event.altKey || event.metaKey) return;
  const side = cell.dataset.side, offset = Number(cell.dataset.offset);
  if (cell.closest("#tensor")) {
    const next = tensorStep(event.key, event.ctrlKey, placeAt(model.a, offset).index);
    if (next) leap("a", offsetOf(model.a, next), "tensor");
    else return;
  } else {
    const next = memoryStep(event.key, event.ctrlKey, offset, rowLength(model, side), model[side].span);
    if (next === undefined) return;
    leap(side, next, side);
  }
  event.preventDefault();
}

// Keys scroll the page below a pointer that rests: only one that moves points at something.
let pointer = "";

function pointedAt(event) {
  const now = `${event.clientX} ${event.clientY}`;
  if (now === pointer) return;
  pointer = now;
  const cell = event.target.closest && event.target.closest("#main td.cell");
  const place = cell ? located(model, cell.dataset.side, Number(cell.dataset.offset)) : null;
  mark(place, "here");
  if (model.a) tell(place || found);
}

// A part of memory further on or back, without another selection.
function turn(side, pages) {
  const length = rowLength(model, side), count = Math.ceil(model[side].span / length);
  const rows = Math.max(0, Math.min(count - 1, first[side] + pages * ROWS));
  leap(side, rows * length);
}

async function share() {
  const button = by("share");
  let done = true;
  try {
    await navigator.clipboard.writeText(location.href);
  } catch { // pages from disk may not be allowed to
    done = false;
  }
  button.textContent = done ? "Copied" : "See the address";
  setTimeout(() => { button.textContent = "Copy link"; }, 2000);
}

function listen() {
  for (const name of ["format", "dims", "beside"]) by(name).addEventListener("input", () => change({[name]: by(name).value}));
  for (const name of ["dtype", "colour"]) by(name).addEventListener("change", () => change({[name]: by(name).value}));
  by("sliders").addEventListener("input", ({target}) => {
    const dims = [...model.dims];
    dims[Number(target.dataset.axis)] = Number(target.value);
    target.parentElement.querySelector("output").textContent = target.value;
    change({dims: dims.join(",")}, true);
  });
  for (const what of ["index", "offset", "byte"]) {
    by(`go-${what}`).addEventListener("change", ({target}) => goTo(what, target.value));
  }
  by("previous").addEventListener("click", () => leap(state.side, state.offset - 1));
  by("next").addEventListener("click", () => leap(state.side, state.offset + 1));
  for (const side of ["a", "b"]) {
    by(side).querySelector(".earlier").addEventListener("click", () => turn(side, -1));
    by(side).querySelector(".later").addEventListener("click", () => turn(side, 1));
  }
  by("main").addEventListener("click", ({target}) => {
    const cell = target.closest("td.cell");
    if (cell) leap(cell.dataset.side, Number(cell.dataset.offset), cell.closest("#tensor") ? "tensor" : cell.dataset.side);
  });
  by("main").addEventListener("pointerover", pointedAt);
  by("main").addEventListener("pointerleave", pointedAt);
  by("main").addEventListener("keydown", pressed);
  by("inputs").addEventListener("submit", (event) => event.preventDefault());
  by("share").addEventListener("click", share);
  addEventListener("resize", () => { if (model.a) drawAgain(); });
  addEventListener("hashchange", () => {
    state = stateOf(location.hash);
    model = understood(state, table);
    first = {};
    render();
  });
}

function begin() {
  const tags = Object.values(table.names).map((all) => all.onednn).filter(Boolean);
  const names = [...new Set([...tags, ...Object.keys(table.readings)])];
  by("names").append(...names.map((name) => make("option", {value: name})));
  by("dtype").append(...Object.keys(table.dtypes).map((name) => make("option", {}, name)));
  by("examples").append(...table.examples.map(([format, dims, beside]) => {
    const fragment = writeFragment({format, dims, beside, dtype: state.dtype, colour: "", side: "a", offset: ""});
    return make("a", {href: fragment}, format);
  }));
  listen();
  render();
}

begin();

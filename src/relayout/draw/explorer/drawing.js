// The pictures: slices of the tensor, and memory row by row. Both show a part of what is large, and say which.

const ROWS = 32; // of memory at most
const ROW = 16; // elements of a row of memory at most
const LABEL = {wide: 8, slim: 3}; // characters of a cell of memory with which long rows have room
const SLIM = 900; // pixels of a window below which there is less room
const CELLS = 320; // of all slices at most
const FEW = 4; // slices, fewer than which are large
const SLICE = {many: {rows: 8, columns: 8}, few: {rows: 12, columns: 16}}; // rows and columns of a slice at most
const HUES = 7, STEPS = 8; // colours that tell values apart, and steps from light to dark where they are more

const WORDS = {n: "batch", c: "channels", d: "depth", h: "height", w: "width", o: "outputs", i: "inputs",
  g: "groups", t: "time", l: "layers", dir: "directions", gate: "gates"};

// Make an element; text goes in as text, so nothing that a user writes becomes markup.
function make(name, given = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(given)) {
    if (key === "class") element.className = value;
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children);
  return element;
}

const counted = (n) => n.toLocaleString("en");
const plural = (n, word) => `${counted(n)} ${word}${n === 1 ? "" : "s"}`;
const spelledIndex = (axes, index) => axes.map((name, k) => `${name}=${index[k]}`).join(" ") || "the element";

// The digits by which cells can be coloured: those of the format, and whole axes.
function paints(layout) {
  const digits = layout.digits.filter((digit) => digit.extent > 1).map((digit) => ({
    name: digit.name, axes: digit.axes, weight: digit.weight, count: digit.extent, open: digit.open,
  }));
  const cut = layout.axes.map((name, a) => ({name, axes: [a], weight: 1, count: layout.dims[a], open: true}));
  const all = [...digits, ...cut.filter(({count}) => count > 1)];
  return all.filter((one, k) => all.findIndex(({name}) => name === one.name) === k);
}

// The paint that a name chooses; without one the blocks of a blocked axis, else the channels, else the first.
function paintOf(layout, name) {
  const all = paints(layout);
  const blocked = layout.digits.find((digit) => digit.open && digit.weight > 1 && digit.extent > 1);
  return all.find((one) => one.name === name) || all.find((one) => blocked && one.name === blocked.name)
    || all.find((one) => one.name === "c") || all[0] || null;
}

// The class of a value: one of seven hues, or a step of the ramp that neighbours share.
function shade(value, count) {
  return count <= HUES ? `f${value}` : `r${Math.floor(value / Math.ceil(count / STEPS))}`;
}

function paintedClass(paint, layout, index) {
  if (!paint || !index) return "";
  const value = Math.floor(numberOf(layout, paint, index) / paint.weight);
  return shade(paint.open ? value : value % paint.count, paint.count);
}

// What the colours mean, and the signs that have none.
function drawLegend(element, model, paint) {
  const sign = (cls, text) => make("span", {}, make("i", {class: `cell ${cls}`, "aria-hidden": "true"}), text);
  const parts = [];
  if (paint) {
    const wide = paint.count <= HUES ? 1 : Math.ceil(paint.count / STEPS);
    for (let first = 0; first < paint.count; first += wide) {
      const last = Math.min(first + wide, paint.count) - 1;
      parts.push(sign(shade(first, paint.count), `${paint.name} = ${first === last ? first : `${first}–${last}`}`));
    }
  }
  const padded = [model.a, model.b].some((layout) => layout && layout.span > layout.size);
  if (padded) parts.push(sign("padding", "padding"));
  parts.push(sign("line", "in the cache line of the element"));
  element.replaceChildren(...parts);
}

// The part of "count" that is shown, at most "most", in pages, so that "wanted" is in it.
function page(count, most, wanted) {
  const first = Math.floor(wanted / most) * most;
  return {first, last: Math.min(count, first + most), count};
}

// Which slices, rows and columns are drawn: the last two axes that count span a slice.
function framed(layout, index) {
  const counting = layout.dims.map((_, a) => a).filter((a) => layout.dims[a] > 1);
  const all = layout.dims.length;
  const column = counting.at(-1) ?? (all ? all - 1 : null);
  const row = counting.at(-2) ?? null;
  const outer = layout.dims.map((_, a) => a).filter((a) => a !== column && a !== row);
  const at = index || layout.dims.map(() => 0);
  const many = product(outer.map((a) => layout.dims[a]));
  const most = many < FEW ? SLICE.few : SLICE.many;
  const columns = column === null ? page(1, 1, 0) : page(layout.dims[column], most.columns, at[column]);
  const rows = row === null ? page(1, 1, 0) : page(layout.dims[row], most.rows, at[row]);
  const each = Math.min(columns.count, most.columns) * Math.min(rows.count, most.rows);
  const number = outer.reduce((n, a) => n * layout.dims[a] + at[a], 0);
  const slices = page(many, Math.max(1, Math.floor(CELLS / each)), number);
  return {column, row, outer, columns, rows, slices};
}

// The indices along the outer axes of a slice.
function sliceAt(layout, outer, number) {
  const index = layout.dims.map(() => 0);
  for (const axis of [...outer].reverse()) {
    index[axis] = number % layout.dims[axis];
    number = Math.floor(number / layout.dims[axis]);
  }
  return index;
}

// Draw the slices; return the cells by offset, so that one can be found.
function drawTensor(element, model, frame, paint) {
  const layout = model.a, cells = new Map(), figures = [];
  for (let k = frame.slices.first; k < frame.slices.last; k += 1) {
    const base = sliceAt(layout, frame.outer, k);
    const shown = frame.outer.filter((a) => layout.dims[a] > 1);
    const caption = shown.map((a) => `${layout.axes[a]}=${base[a]}`).join(" ");
    const grid = make("table", {class: "grid", role: "grid", "aria-label": `slice ${caption || "of the tensor"}`});
    grid.append(sliceHead(layout, frame));
    for (let r = frame.rows.first; r < frame.rows.last; r += 1) {
      const line = make("tr", {}, make("th", {scope: "row"}, frame.row === null ? "" : String(r)));
      for (let c = frame.columns.first; c < frame.columns.last; c += 1) {
        const index = [...base];
        if (frame.row !== null) index[frame.row] = r;
        if (frame.column !== null) index[frame.column] = c;
        const offset = offsetOf(layout, index);
        const cell = make("td", {class: `cell ${paintedClass(paint, layout, index)}`, role: "gridcell", tabindex: -1,
          "data-side": "a", "data-offset": offset, "aria-label": `${spelledIndex(layout.axes, index)}, offset ${offset}`},
        String(offset));
        cells.set(offset, cell);
        line.append(cell);
      }
      grid.append(line);
    }
    figures.push(make("figure", {}, make("figcaption", {}, caption), grid));
  }
  element.replaceChildren(...figures);
  return cells;
}

function sliceHead(layout, frame) {
  const name = (axis) => (axis === null ? "" : layout.axes[axis]);
  const head = make("tr", {}, make("th", {}, frame.row === null ? name(frame.column) : `${name(frame.row)}\\${name(frame.column)}`));
  for (let c = frame.columns.first; c < frame.columns.last; c += 1) head.append(make("th", {scope: "col"}, String(c)));
  return head;
}

// What of the tensor is not drawn, in words.
function tensorLeft(layout, frame) {
  const part = ({first, last, count}, what) => (last - first < count ? [`${what} ${first}–${last - 1} of ${counted(count)}`] : []);
  const parts = [
    ...part(frame.slices, "slices"),
    ...(frame.row === null ? [] : part(frame.rows, layout.axes[frame.row])),
    ...(frame.column === null ? [] : part(frame.columns, layout.axes[frame.column])),
  ];
  const drawn = [frame.slices, frame.rows, frame.columns].reduce((n, {first, last}) => n * (last - first), 1);
  return parts.length ? `Drawn: ${parts.join(", ")}; ${counted(layout.size - drawn)} of ${plural(layout.size, "element")} `
    + "are not drawn. Step on, or go to an element, to see others." : "";
}

// How many elements a row of memory has: a cache line or a part of one, half as many where indices are long.
function rowLength(model, side) {
  const most = Math.min(ROW, (8 * LINE) / model.bits);
  const room = model.b || innerWidth < SLIM ? LABEL.slim : LABEL.wide;
  return labelLength(model[side], most) <= room ? most : Math.min(most, ROW / 2);
}

// The characters that tell elements of a row apart: the indices that differ in it.
function labelLength(layout, length) {
  let room = 1;
  const axes = new Set();
  for (const digit of [...layout.digits].reverse()) {
    if (room % length === 0) break; // rows end where these digits do
    room *= digit.extent || 1;
    if (digit.extent > 1) digit.axes.forEach((axis) => axes.add(axis));
  }
  return [...axes].reduce((n, axis) => n + 1 + String(layout.dims[axis] - 1).length, -1);
}

// The window of rows that has an offset; it stays where it is while the offset is in it.
function windowOf(model, side, offset, first) {
  const layout = model[side], {bits} = model, length = rowLength(model, side), count = Math.ceil(layout.span / length);
  const wanted = Math.floor(offset / length);
  const perLine = Math.max(1, (8 * LINE) / bits / length);
  const inside = first !== undefined && first <= wanted && wanted < first + ROWS && first < count;
  const start = inside ? first : Math.max(0, Math.min(wanted - ROWS / 2, count - ROWS));
  return {first: Math.floor(start / perLine) * perLine, rows: Math.min(ROWS, count), count, length, perLine};
}

// Draw rows of memory; return the cells by offset.
function drawMemory(element, model, side, view, paint) {
  const layout = model[side], cells = new Map();
  const last = Math.min(view.count, view.first + ROWS);
  const rows = [];
  for (let r = view.first; r < last; r += 1) {
    const offsets = [];
    for (let o = r * view.length; o < Math.min(layout.span, (r + 1) * view.length); o += 1) offsets.push(o);
    rows.push({number: r, offsets, places: offsets.map((offset) => placeAt(layout, offset))});
  }
  const varying = varyingAxes(layout, rows);
  const fixed = layout.axes.map((_, a) => a).filter((a) => layout.dims[a] > 1 && !varying.includes(a));
  const common = fixed.filter((a) => new Set(rows.map((row) => indexAlong(row, a))).size === 1);
  const own = fixed.filter((a) => !common.includes(a));
  const grid = make("table", {class: "grid", role: "grid", "aria-label": `memory, in rows of ${view.length} elements`});
  grid.append(make("tr", {}, make("th", {scope: "col"}, "line"), make("th", {scope: "col"}, "offset"),
    make("th", {scope: "col"}, spelledFixed(layout, common, rows[0])), make("th", {colspan: view.length}, `${varying.map((a) => layout.axes[a]).join(",") || "elements"}`)));
  for (const {number, offsets, places} of rows) {
    const begins = number % view.perLine === 0;
    const line = make("tr", {class: begins ? "first" : ""},
      make("th", {scope: "row"}, begins ? counted(number / view.perLine) : ""),
      make("th", {scope: "row"}, counted(offsets[0])),
      make("th", {scope: "row"}, spelledFixed(layout, own, {places})));
    offsets.forEach((offset, k) => {
      const cell = memoryCell(model, side, offset, places[k], varying, paint);
      cells.set(offset, cell);
      line.append(cell);
    });
    grid.append(line);
  }
  element.replaceChildren(grid);
  return cells;
}

// The axes whose index differs within a row; the others are said once, before the row.
function varyingAxes(layout, rows) {
  return layout.axes.map((_, a) => a).filter((a) => rows.some(({places}) => {
    const known = places.filter((place) => place.index).map((place) => place.index[a]);
    return known.some((i) => i !== known[0]);
  }));
}

// The index along an axis of the first element of a row; undefined in rows of padding.
function indexAlong({places}, axis) {
  const first = places.find((place) => place.index);
  return first && first.index[axis];
}

// What all elements of a row have in common, "h=5 w=16"; what all rows have stands in the head.
function spelledFixed(layout, axes, row) {
  return row && indexAlong(row, 0) !== undefined
    ? axes.map((a) => `${layout.axes[a]}=${indexAlong(row, a)}`).join(" ") : "";
}

function memoryCell(model, side, offset, place, varying, paint) {
  const layout = model[side], {index} = place;
  const common = {role: "gridcell", tabindex: -1, "data-side": side, "data-offset": offset};
  if (!index) {
    return make("td", {...common, class: "cell padding", "aria-label": `offset ${offset}, ${paddingWords(layout, place)}`}, "·");
  }
  const own = side === "a" ? index : model.across.map((axis) => index[axis]);
  return make("td", {...common, class: `cell ${paintedClass(paint, model.a, own)}`,
    "aria-label": `offset ${offset}, ${spelledIndex(layout.axes, index)}`}, varying.map((a) => index[a]).join(",") || "0");
}

// Why a place is padding: "padding (c would be 17, of 17)".
function paddingWords(layout, place) {
  const parts = place.beyond.map(({term, number}) => {
    const name = term.axes.map((a) => layout.axes[a]).join(" ");
    return `${term.axes.length > 1 ? `(${name})` : name} would be ${number}; it is below ${term.size}`;
  });
  return `padding: ${parts.join(", ")}`;
}

// What is worth knowing about a layout, as pairs of words.
function facts(layout, bits, table) {
  const bytes = (places) => `${counted(Math.ceil((places * bits) / 8))} bytes`;
  const share = layout.span ? (100 * (layout.span - layout.size)) / layout.span : 0;
  const found = [["elements", `${counted(layout.size)} in ${plural(layout.span, "place")}, ${bytes(layout.span)}`]];
  found.push(["padding", share ? `${counted(layout.span - layout.size)} places, ${share.toPrecision(3)} % of the memory` : "none"]);
  const vector = vectorOf(layout, bits);
  if (vector) {
    const name = layout.axes[vector.axis], what = WORDS[name] || `numbers of ${name}`;
    found.push(["a vector", `the first ${vector.count} ${what}: in ${plural(vector.lines, "cache line")}`]);
  }
  found.push(["digits", digitsText(layout.format)]);
  found.push(["names", namesOf(layout.format, table) || "none in the list of this page"]);
  return found;
}

// What the systems call a format: as Python's table says; a tag by its grammar.
function namesOf(format, table) {
  const told = table.names[digitsText(format)] || {};
  const tag = tagOf(format);
  const spelled = {...(tag ? {onednn: tag} : {}), ...told};
  return Object.entries(spelled).map(([name, text]) => `${table.dialects[name]} ${text}`).join(", ");
}

function drawFacts(element, pairs) {
  element.replaceChildren(...pairs.flatMap(([what, words]) => [make("dt", {}, what), make("dd", {}, words)]));
}

// Where elements lie: a format with sizes. Offsets count elements.
//
//   offset(i) = sum over digits: (number of the term // weight) % extent * stride
//
// The number of a term is the index of its axis, or of fused axes read as one row-major number. The open digit
// counts as far as the size demands; rounding up there is all of padding.

const LINE = 64; // bytes of a cache line

// Lay sizes out densely: strides are the products of the extents further in.
function makeLayout(format, dims) {
  const {axes} = format;
  if (dims.length !== axes.length) {
    throw new LayoutError(`the format has ${axes.length} axes (${axes.join(", ")}); ${dims.length} sizes are given`);
  }
  const terms = [...groupedBy(format.digits, termOf).values()].map((ladder) => ({
    axes: ladder[0].axes, size: product(ladder[0].axes.map((a) => dims[a])),
  }));
  const sizeOf = new Map(terms.map((term) => [term.axes.join(), term.size]));
  const digits = format.digits.map((digit) => ({
    ...digit, open: digit.extent === null, name: spellDigit(axes, digit),
    extent: digit.extent === null ? Math.ceil(sizeOf.get(termOf(digit)) / digit.weight) : digit.extent,
  }));
  let stride = 1;
  for (const digit of [...digits].reverse()) {
    digit.stride = stride;
    stride *= digit.extent || 1;
  }
  if (stride > Number.MAX_SAFE_INTEGER || product(dims.map((size) => size || 1)) > Number.MAX_SAFE_INTEGER) {
    throw new LayoutError(`sizes ${dims.join(",")} are more than 2**53 places, more than this page counts to`);
  }
  const size = product(dims);
  return {axes, dims, terms, digits, size, span: size ? stride : 0};
}

// The number of the term that a digit is cut from.
const numberOf = (layout, digit, index) => digit.axes.reduce((n, a) => n * layout.dims[a] + index[a], 0);

// The values of the digits of an element, in memory order.
function digitsAt(layout, index) {
  return layout.digits.map((digit) => {
    const value = Math.floor(numberOf(layout, digit, index) / digit.weight);
    return digit.open ? value : value % digit.extent;
  });
}

// Where an element lies.
function offsetOf(layout, index) {
  return digitsAt(layout, index).reduce((sum, value, k) => sum + value * layout.digits[k].stride, 0);
}

// What lies at an offset: {numbers of the terms, index}; index null for padding. Null outside of the layout.
function placeAt(layout, offset) {
  if (offset < 0 || offset >= layout.span) return null;
  const numbers = new Map(layout.terms.map((term) => [term.axes.join(), 0]));
  for (const digit of layout.digits) {
    const value = Math.floor(offset / digit.stride) % digit.extent;
    numbers.set(termOf(digit), numbers.get(termOf(digit)) + value * digit.weight);
  }
  const index = layout.dims.map(() => 0), beyond = [];
  for (const term of layout.terms) {
    let number = numbers.get(term.axes.join());
    if (number >= term.size) beyond.push({term, number});
    for (const axis of [...term.axes].reverse()) {
      index[axis] = number % layout.dims[axis];
      number = Math.floor(number / layout.dims[axis]);
    }
  }
  return {index: beyond.length ? null : index, beyond, numbers};
}

// For each axis of a the axis of b with the same meaning: by role where both have the same, else by position.
function correspondence(a, b) {
  if (a.length !== b.length) {
    throw new LayoutError(`the first format has ${a.length} axes (${a.join(", ")}), this one ${b.length} (${b.join(", ")})`);
  }
  const meaningless = (axes) => axes.join("") === ALPHABET.slice(0, axes.length);
  const asData = (axes) => (axes.includes("g") || axes.includes("l") ? axes
    : axes.map((role) => ({o: "n", i: "c"})[role] || role));
  const position = a.map((_, axis) => axis);
  if (meaningless(a) || meaningless(b) || a.length < 2) return position;
  for (const [one, two] of [[a, b], [asData(a), asData(b)]]) {
    if (sameSet(one, two)) return one.map((role) => two.indexOf(role));
  }
  if ([a, b].some((axes) => sameSet(axes, ["row", "col"]))) return position;
  throw new LayoutError(`the first format has the axes ${a.join(", ")} and this one ${b.join(", ")}: they mean different things`);
}

// The sum that gives the offset: "n*480 + c//8*160 + h*32 + w*8 + c%8".
function formulaOf(layout) {
  return layout.digits.map((digit) => digit.name + (digit.stride === 1 ? "" : `*${digit.stride}`)).join(" + ") || "0";
}

// The byte at which an element begins; elements of 4 bits begin at halves.
const byteOf = (offset, bits) => (offset * bits) / 8;
const lineOf = (offset, bits) => Math.floor((offset * bits) / (8 * LINE));

// Elements from the first one on along an axis, as many as fill a vector of 16, and the lines they lie in.
function vectorOf(layout, bits) {
  if (!layout.size) return null;
  let axis = ["c", "o"].map((role) => layout.axes.indexOf(role)).find((a) => a >= 0 && layout.dims[a] > 1);
  if (axis === undefined) axis = layout.dims.findLastIndex((size) => size > 1);
  if (axis < 0) return null;
  const count = Math.min(16, layout.dims[axis]), lines = new Set();
  for (let k = 0; k < count; k += 1) {
    lines.add(lineOf(offsetOf(layout, layout.dims.map((_, a) => (a === axis ? k : 0))), bits));
  }
  return {axis, count, lines: lines.size};
}

// What is shown, as text in the URL's fragment: a link to this page with the same fragment shows the same.

const KEYS = {f: "format", d: "dims", t: "dtype", b: "beside", c: "colour", s: "side", o: "offset"};

// The state that a fragment says; what it leaves out is as in "start".
function readFragment(fragment, start) {
  const said = new URLSearchParams(fragment.replace(/^#/, ""));
  if (![...said.keys()].some((key) => Object.hasOwn(KEYS, key))) return {...start};
  const state = {...start, beside: "", colour: "", side: "a", offset: 0};
  for (const [key, name] of Object.entries(KEYS)) if (said.has(key)) state[name] = said.get(key);
  state.offset = /^[0-9]{1,15}$/.test(state.offset) ? Number(state.offset) : 0;
  state.side = state.side === "b" ? "b" : "a";
  return state;
}

// The fragment of a state, without what is empty.
function writeFragment(state) {
  const said = new URLSearchParams();
  for (const [key, name] of Object.entries(KEYS)) {
    const usual = name === "side" ? "a" : "";
    if (String(state[name]) !== usual) said.set(key, state[name]);
  }
  // These need no escape in a fragment, and links are read by people.
  return `#${said.toString().replaceAll("%2C", ",").replaceAll("%2F", "/").replaceAll("%3A", ":")}`;
}

// What a state means: the layouts, and for each input that means nothing what is wrong with it.
function understood(state, table) {
  const model = {a: null, b: null, across: null, dims: [], errors: {}, bits: table.dtypes[state.dtype]};
  const attempt = (input, work) => {
    try {
      return work();
    } catch (error) {
      if (!(error instanceof LayoutError)) throw error;
      model.errors[input] = error.message;
      return null;
    }
  };
  const dims = attempt("dims", () => readDims(state.dims));
  model.dims = dims || [];
  const rank = model.dims.length;
  const format = attempt("format", () => readFormat(state.format, table, rank, state.dtype));
  const second = state.beside.trim()
    ? attempt("beside", () => readFormat(state.beside, table, rank, state.dtype)) : null;
  model.axes = format ? format.axes : null;
  if (!dims || !format) return model;
  model.a = attempt("dims", () => makeLayout(format, dims));
  if (!model.a || !second) return model;
  model.b = attempt("beside", () => {
    model.across = correspondence(format.axes, second.axes);
    const sizes = [];
    model.across.forEach((axis, k) => { sizes[axis] = dims[k]; });
    return makeLayout(second, sizes);
  });
  return model;
}

// What is at an offset of one side, and where the same element lies in both.
function located(model, side, offset) {
  const layout = model[side];
  const place = layout && placeAt(layout, offset);
  if (!place) return null;
  const found = {side, place, index: null, a: null, b: null};
  found[side] = {offset, index: place.index};
  if (!place.index) return found;
  found.index = side === "a" || !model.across ? place.index : model.across.map((axis) => place.index[axis]);
  found.a = {index: found.index, offset: offsetOf(model.a, found.index)};
  if (model.b) {
    const index = [];
    model.across.forEach((axis, k) => { index[axis] = found.index[k]; });
    found.b = {index, offset: offsetOf(model.b, index)};
  }
  return found;
}

// How formats are written: oneDNN's tags and digits by grammar, all other names from the table.
//
// A format is {axes, digits}: the names of the logical axes in order of index, and the digits in memory order,
// outermost first, each {axes: numbers of axes, weight, extent}. The open digit of a term has extent null.
// Python's relayout.notation is the definition; tests compare the two.

class LayoutError extends Error {}

const ALPHABET = "abcdefghijklmnopqrstuvwxyz";

// The logical orders that letters with a meaning imply. In "l" tags d is the direction and g the gate.
const DOMAINS = [
  ["n", "c"], ["n", "c", "w"], ["n", "c", "h", "w"], ["n", "c", "d", "h", "w"],
  ["o", "i"], ["o", "i", "w"], ["o", "i", "h", "w"], ["o", "i", "d", "h", "w"],
  ["g", "o", "i"], ["g", "o", "i", "w"], ["g", "o", "i", "h", "w"], ["g", "o", "i", "d", "h", "w"],
  ["t", "n", "c"], ["t", "n"], ["l", "dir", "n", "c"], ["l", "dir", "i", "gate", "o"],
  ["l", "dir", "gate", "o"], ["l", "dir", "i", "o"], ["x"],
];
const LETTER_OF = {dir: "d", gate: "g"};

// Two aliases that oneDNN defines with another outer order than they spell.
const DEVIATING = {gIOhw2i8o16i2o: "gOIhw2i8o16i2o", gIOdhw2i8o16i2o: "gOIdhw2i8o16i2o"};

const letterOf = (role) => LETTER_OF[role] || role;
const sameSet = (a, b) => a.length === b.length && a.every((one) => b.includes(one));
const product = (numbers) => numbers.reduce((all, one) => all * one, 1);

// Read a tag of oneDNN; null for any other text.
function parseTag(text) {
  const match = /^([A-Za-z]+)((?:[0-9]{1,9}[a-z])*)$/.exec(DEVIATING[text] || text);
  if (!match) return null;
  const outer = [...match[1]], low = outer.map((letter) => letter.toLowerCase());
  const axes = axesOfLetters(low);
  if (!axes) return null;
  const blocks = [...match[2].matchAll(/([0-9]+)([a-z])/g)].map(([, size, letter]) => [letter, Number(size)]);
  const upper = low.filter((letter, k) => letter !== outer[k]);
  const blocked = new Set(blocks.map(([letter]) => letter));
  const plain = upper.filter((letter) => !blocked.has(letter));
  // Four aliases of oneDNN write an upper-case I that has no block.
  const forgiven = blocked.size && plain.join() === "i";
  if ([...blocked].some((letter) => !upper.includes(letter)) || (plain.length && !forgiven)) return null;
  if (blocks.some(([, size]) => size === 0)) {
    throw new LayoutError(`tag '${text}' has a block of size 0; a block must be 1 or more`);
  }
  const place = new Map(axes.map((role, axis) => [letterOf(role), axis]));
  return blockedFormat(axes, low.map((letter) => place.get(letter)),
    blocks.map(([letter, size]) => [place.get(letter), size]));
}

// The logical axes that the outer letters of a tag imply, or null.
function axesOfLetters(low) {
  if (new Set(low).size !== low.length) return null;
  const letters = [...ALPHABET.slice(0, low.length)];
  if (sameSet(low, letters)) return letters;
  const found = DOMAINS.find((roles) => sameSet(roles.map(letterOf), low));
  if (found) return found;
  const known = low.every((letter) => "tldnchwgoi".includes(letter));
  if (low.includes("d") && known && !(low.includes("h") && low.includes("w")) && low.length > 2) {
    throw new LayoutError(`in '${low.join("")}' the letter d can be depth (with h and w) or direction (with l), `
      + "and neither set of axes is complete");
  }
  return null;
}

// The format with these outer axes and inner blocks, outermost first.
function blockedFormat(axes, outer, inner) {
  const digits = outer.map((axis) => ({
    axes: [axis], weight: product(inner.filter(([a]) => a === axis).map(([, size]) => size)), extent: null,
  }));
  inner.forEach(([axis, size], k) => {
    const below = inner.slice(k + 1).filter(([a]) => a === axis).map(([, smaller]) => smaller);
    if (size !== 1) digits.push({axes: [axis], weight: product(below), extent: size});
  });
  return checkedFormat(axes, digits);
}

// Read digits, "nchw -> n, c//16, h, w, c%16"; null for any other text.
function parseDigits(text) {
  const arrow = text.lastIndexOf("->");
  if (arrow < 0 && !text.includes(",")) return null;
  const head = arrow < 0 ? "" : text.slice(0, arrow).trim(), body = text.slice(arrow < 0 ? 0 : arrow + 2).trim();
  const wish = "write them as in 'nchw -> n, c//16, h, w, c%16'";
  const bare = (part) => part.trim().replace(/^[[\]]+|[[\]]+$/g, "").trim();
  if (arrow >= 0 && !bare(head) && !bare(body)) return {axes: [], digits: []};
  const one = /^(?:([A-Za-z]\w*)|\(\s*([A-Za-z]\w*(?:\s+[A-Za-z]\w*)*)\s*\))\s*(?:\/\/?\s*([0-9]{1,19}))?\s*(?:%\s*([0-9]{1,19}))?$/;
  const parts = bare(body).split(",").map((part) => one.exec(bare(part)));
  if (parts.includes(null)) {
    if (arrow < 0) return null;
    throw new LayoutError(`can't read the digits '${cut(body)}'; ${wish}`);
  }
  const words = head.replaceAll(",", " ").split(/\s+/).filter(Boolean);
  if (!words.every((word) => /^[A-Za-z]\w*$/.test(word))) {
    throw new LayoutError(`can't read the axes '${cut(head)}' in front of '->'; ${wish}`);
  }
  const written = parts.map(([, name, fused, weight, extent]) => ({
    names: name ? [name] : fused.split(/\s+/), weight: Number(weight || 1), extent: extent ? Number(extent) : null,
  }));
  const axes = logicalAxes(words, written);
  const digits = written.filter((digit) => digit.extent !== 1).map(({names, weight, extent}) => {
    const unknown = names.find((name) => !axes.includes(name));
    if (unknown) {
      throw new LayoutError(`digit '${names.join(" ")}' names '${unknown}' which is none of the axes ${axes.join(", ")}`);
    }
    return {axes: names.map((name) => axes.indexOf(name)), weight, extent};
  });
  return checkedFormat(axes, digits);
}

// The logical axes of digits: as the arrow says, else in the order of their domain, else as they come.
function logicalAxes(words, written) {
  if (words.length === 1 && words[0].length > 1 && !written.some(({names}) => names.join() === words[0])) {
    return [...words[0]];
  }
  if (words.length) return words;
  const found = [...new Set(written.flatMap(({names}) => names))];
  const letters = [...ALPHABET.slice(0, found.length)];
  if (sameSet(found, letters)) return letters;
  return DOMAINS.find((roles) => sameSet(roles, found)) || found;
}

const termOf = (digit) => digit.axes.join();

// A format whose digits are mixed-radix numbers: every axis in one term, one open digit a term, weights chained.
function checkedFormat(axes, digits) {
  const terms = Map.groupBy ? Map.groupBy(digits, termOf) : groupedBy(digits, termOf);
  axes.forEach((name, axis) => {
    const times = [...terms.keys()].flatMap((key) => key.split(",")).filter((a) => Number(a) === axis).length;
    if (times !== 1 || axes.indexOf(name) !== axis) {
      const how = times ? "both alone and fused with others, or twice" : "in no digit";
      throw new LayoutError(`axis '${name}' of ${axes.join(", ")} stands ${how}; every axis must be written out once`);
    }
  });
  for (const ladder of terms.values()) checkLadder(ladder[0].axes.map((a) => axes[a]).join(" "), ladder);
  if (product(digits.map((digit) => digit.extent || 1)) > Number.MAX_SAFE_INTEGER) {
    throw new LayoutError("the blocks hold more than 2**53 elements, more than this page counts to");
  }
  return {axes: [...axes], digits};
}

function groupedBy(items, key) {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) || []), item]);
  return groups;
}

function checkLadder(name, ladder) {
  const open = ladder.filter((digit) => digit.extent === null);
  if (open.length !== 1) {
    throw new LayoutError(`axis '${name}' has ${open.length} open digits (without '%'); it needs exactly one, `
      + "the most significant");
  }
  let expected = 1;
  const rising = ladder.filter((digit) => digit.extent !== null).sort((a, b) => a.weight - b.weight);
  for (const digit of [...rising, open[0]]) {
    if (digit.weight !== expected) {
      throw new LayoutError(`axis '${name}': a digit has weight ${digit.weight} where the digits below it count `
        + `${expected}; the weight must be the product of the extents below`);
    }
    if (digit.extent !== null && digit.extent < 1) {
      throw new LayoutError(`axis '${name}': a digit of extent ${digit.extent}; it must be 1 or more`);
    }
    expected *= digit.extent || 1;
  }
}

// One digit as Python would compute it: "c//4%4".
function spellDigit(axes, digit) {
  const names = digit.axes.map((a) => axes[a]);
  return (names.length === 1 ? names[0] : `(${names.join(" ")})`)
    + (digit.weight !== 1 ? `//${digit.weight}` : "") + (digit.extent !== null ? `%${digit.extent}` : "");
}

// The digits as Python writes them, under which the table lists the names of a format.
function digitsText(format) {
  const {axes} = format;
  const head = axes.every((name) => name.length === 1) ? axes.join("") : axes.join(" ");
  return `${head} -> ${format.digits.map((digit) => spellDigit(axes, digit)).join(", ")}`;
}

// The tag of a format, or null where oneDNN's grammar has none.
function tagOf(format) {
  const {axes, digits} = format, rank = axes.length;
  const domain = DOMAINS.some((roles) => roles.join() === axes.join());
  if (!rank || rank > 26 || digits.some((digit) => digit.axes.length > 1)) return null;
  if (digits.slice(0, rank).some((digit) => digit.extent !== null)) return null;
  const inner = digits.slice(rank);
  for (const ladder of groupedBy(inner, termOf).values()) {
    if (ladder.some((digit, k) => k && digit.weight > ladder[k - 1].weight)) return null;
  }
  const names = domain ? axes.map(letterOf) : [...ALPHABET.slice(0, rank)];
  const blocked = new Set(inner.map(termOf));
  return digits.slice(0, rank).map((digit) => {
    const letter = names[digit.axes[0]];
    return blocked.has(termOf(digit)) ? letter.toUpperCase() : letter;
  }).join("") + inner.map((digit) => `${digit.extent}${names[digit.axes[0]]}`).join("");
}

// Read a format in any notation. The table has what Python knows of names; some depend on rank and data type.
function readFormat(text, table, rank, dtype) {
  let bare = text.trim(), dialect = null;
  if (!bare) throw new LayoutError("write a format, such as nChw16c, NHWC or n, c//16, h, w, c%16");
  const colon = bare.indexOf(":");
  const named = dialectOf(bare.slice(0, Math.max(0, colon)), table);
  if (named) [dialect, bare] = [named, bare.slice(colon + 1).trim()];
  if (/^torch\.\w+$/.test(bare)) bare = bare.slice("torch.".length); // how PyTorch prints its formats
  const tag = dialect === null || dialect === "onednn" ? parseTag(bare) : null;
  if (tag) return tag;
  const told = Object.hasOwn(table.readings, bare) ? table.readings[bare] : [];
  const readings = told.filter(([name]) => dialect === null || name === dialect);
  if (readings.length) return chosenReading(text, readings, table, rank, dtype);
  const digits = dialect === null || dialect === "digits" ? parseDigits(bare) : null;
  if (digits) return digits;
  throw new LayoutError(unknownName(bare, dialect, table));
}

// The dialect that a word names, or null.
function dialectOf(word, table) {
  const low = word.toLowerCase();
  if (Object.hasOwn(table.dialects, low)) return low;
  return Object.hasOwn(table.synonyms, low) ? table.synonyms[low] : null;
}

// The one meaning of a name for a tensor of this rank and data type.
function chosenReading(text, readings, table, rank, dtype) {
  const fitting = readings.filter(([, , only, types]) => (!only || only === rank) && (!types || types.includes(dtype)));
  if (!fitting.length) {
    const ranks = [...new Set(readings.map(([, , only]) => only).filter(Boolean))];
    throw new LayoutError(ranks.length && !ranks.includes(rank)
      ? `'${text}' means a layout for ${ranks.join(", ")} sizes; ${rank} are given`
      : `'${text}' means no layout for elements of type ${dtype}`);
  }
  const meanings = new Map(fitting.map(([name, digits]) => [digits, name]));
  if (meanings.size > 1) {
    const all = [...meanings].map(([digits, name]) => `in ${table.dialects[name]} ${digits}`);
    throw new LayoutError(`'${text}' means different layouts: ${all.join("; ")}. Write the dialect in front: `
      + `'${fitting[0][0]}:${text}'`);
  }
  return parseDigits(fitting[0][1]);
}

// A text that a message repeats, which nobody reads to the end of a page.
function cut(text) {
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}

function unknownName(bare, dialect, table) {
  const names = [...Object.keys(table.readings), ...Object.values(table.names).map((all) => all.onednn).filter(Boolean)];
  const near = nearest(bare, names);
  const where = dialect === null ? "no dialect has" : `${table.dialects[dialect]} has no`;
  return `${where} a format '${cut(bare)}' in the list of this page`
    .replace("no a format", "no format") + (near ? `; did you mean '${near}'? ` : "; ")
    + "'relayout explore FORMAT DIMS' reads every dialect's grammar";
}

// The name that differs in the fewest letters, if these are few.
function nearest(text, names) {
  let best = null, least = Math.max(2, text.length / 3) + 1;
  for (const name of text.length > 60 ? [] : names) {
    if (Math.abs(name.length - text.length) >= least) continue;
    const far = slip(text.toLowerCase(), name.toLowerCase()) + distance(text, name) / 100; // cases last
    if (far < least) [best, least] = [name, far];
  }
  if (best || text.length < 4) return best;
  const longer = names.filter((name) => name.includes(text)); // "T(8,128)(2,1)", without the order of axes
  return longer.sort((a, b) => a.length - b.length)[0] || null;
}

// How far two names are apart; the same letters in another order are the nearest of equals.
function slip(a, b) {
  return distance(a, b) - ([...a].sort().join("") === [...b].sort().join("") ? 0.5 : 0);
}

// How many letters must be put, taken or changed: Levenshtein's distance.
function distance(a, b) {
  let row = [...Array(b.length + 1).keys()];
  for (let i = 1; i <= a.length; i += 1) {
    const next = [i];
    for (let j = 1; j <= b.length; j += 1) {
      next.push(Math.min(row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] === b[j - 1] ? 0 : 1)));
    }
    row = next;
  }
  return row[b.length];
}

// Read sizes, "1,17,4,4" or "1x17x4x4".
function readDims(text) {
  const bare = text.trim().replace(/^[[(]+|[\])]+$/g, "").replace(/,\s*$/, "").trim();
  if (!bare || bare === "scalar") return [];
  const parts = bare.split(/[,xX\s]\s*/);
  if (!parts.every((part) => /^[0-9]{1,15}$/.test(part))) {
    throw new LayoutError(`'${bare}' is no list of sizes; write whole numbers, as in 1,17,4,4`);
  }
  return parts.map(Number);
}

// The matrix of engines by ops: one row for each op, its dtypes on a click.
"use strict";

/** The ops and scenarios of all entries, by profile and name: the dtypes that any entry has. */
function rowsOf(scenarios) {
  const rows = new Map();
  for (const entry of entries)
    for (const line of entry.lines) {
      if (Boolean(line[DTYPE]) === scenarios) continue;
      const key = `${line[PROFILE]}/${line[NAME]}`;
      if (!rows.has(key)) rows.set(key, { profile: line[PROFILE], name: line[NAME], dtypes: new Set() });
      rows.get(key).dtypes.add(line[DTYPE]);
    }
  const order = ["core", "quant", "attention", "graph", "cache", "memory", "errors", "large", "like"];
  const rank = (row) => order.indexOf(row.profile);
  return [...rows.values()].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
}

/** The state of an op over its dtypes, and how many of them are right. */
function summary(entry, row) {
  const lines = [...row.dtypes].map((dtype) => lineOf(entry, row.profile, row.name, dtype)).filter(Boolean);
  const kinds = lines.map((line) => KIND[line[STATE]]);
  const right = kinds.filter((kind) => ["full", "composite", "part"].includes(kind)).length;
  const every = (kind) => kinds.every((each) => each === kind);
  let kind = "part";
  if (!lines.length) kind = "untried";
  else if (kinds.includes("failing")) kind = "failing";
  else if (every("unsupported")) kind = "unsupported";
  else if (every("composite")) kind = "composite";
  else if (right === lines.length && !kinds.includes("part")) kind = "full";
  return { kind, right, lines };
}

function cellOf(entry, row) {
  const { kind, right, lines } = summary(entry, row);
  if (kind === "untried") return el("td", { class: "untried" }, el("span", { role: "img", "aria-label": `${fullName(entry)}: not tried` }, MARKS.untried));
  const scenario = row.dtypes.has("");
  const share = scenario ? "" : `${right}/${lines.length}`;
  const told = `${fullName(entry)}, ${row.name}: ${WORDS[kind]}${scenario ? "" : `; right in ${right} of ${lines.length} dtypes`}`;
  return el("td", { title: told }, el("span", { class: kind, role: "img", "aria-label": told }, `${MARKS[kind]} `, el("small", {}, share)));
}

function dtypeCell(entry, row, dtype) {
  const line = lineOf(entry, row.profile, row.name, dtype);
  if (!line) return el("td", { class: "untried" }, el("span", { role: "img", "aria-label": `${fullName(entry)}: not tried` }, MARKS.untried));
  const kind = KIND[line[STATE]];
  const worst = line[PASSED] ? `worst error ${line[WORST]} of its bound` : "";
  const told = [`${fullName(entry)}: ${line[STATE]}`, `${line[PASSED]} calls right`, line[FAILED] && `${line[FAILED]} wrong`, line[UNSUPPORTED] && `${line[UNSUPPORTED]} unsupported`, worst, line[PRECISIONS].length && `computed in ${line[PRECISIONS].join(", ")}`].filter(Boolean).join("; ");
  const share = line[WORST] < 1 ? Math.floor(line[WORST] * 100) / 100 : line[WORST].toPrecision(2);
  const number = line[FAILED] ? `${line[FAILED]} wrong` : line[PASSED] ? String(share) : "";
  const places = lastPlaces(entry, row.name, dtype);
  const more = places ? ` · ${ulps(places)} ulp` : "";
  return el("td", { title: told }, el("span", { class: kind, role: "img", "aria-label": told }, `${MARKS[kind]} `, el("small", {}, number + more)));
}

function lastPlaces(entry, name, dtype) {
  const found = entry.worst.find((each) => each.name === name && each.dtype === dtype);
  return found?.extremes.last_places?.last_places;
}

const ulps = (places) => (places < 1000 ? places.toPrecision(3).replace(/\.?0+$/, "") : count(Number(places.toPrecision(2))));
const DTYPES = ["f32", "f16", "bf16", "i32", "i64"];
const byDtype = (a, b) => (DTYPES.indexOf(a) + 1 || 99) - (DTYPES.indexOf(b) + 1 || 99) || a.localeCompare(b);

function dtypeRows(row, shown) {
  return [...row.dtypes].sort(byDtype).map((dtype) => el("tr", { class: "sub" }, el("th", { scope: "row" }, dtype), ...shown.map((entry) => dtypeCell(entry, row, dtype))));
}

/** The words of a search: those that name dtypes, those that name engines, and the others, which name ops. */
function readQuery(query) {
  const dtypes = new Set(entries.flatMap((entry) => entry.lines.map((line) => line[DTYPE])).filter(Boolean));
  const found = { dtypes: [], engines: [], ops: [] };
  for (const word of words(query)) {
    const own = entries.filter((entry) => includesAll(`${entry.title} ${entry.engine}`, word));
    if (dtypes.has(word)) found.dtypes.push(word);
    else if (own.length && word.length > 2) found.engines.push(...own);
    else found.ops.push(word);
  }
  return found;
}

function matching(rows, query) {
  const { dtypes, ops } = readQuery(query);
  const known = ops.filter((word) => rows.some((row) => `${row.profile}/${row.name}`.includes(word)));
  if (ops.length && !known.length && !dtypes.length) return { rows: [], dtypes, known };
  const exact = rows.filter((row) => known.includes(row.name));
  const wanted = exact.length ? exact : rows.filter((row) => known.every((word) => `${row.profile}/${row.name}`.includes(word)));
  return { rows: wanted.filter((row) => dtypes.every((dtype) => row.dtypes.has(dtype))), dtypes, known };
}

const matrixState = { scenarios: false, versions: false };

function matrixView(query) {
  const { engines } = readQuery(query);
  const shown = engines.length ? [...new Set(engines)] : matrixState.versions ? entries : newest;
  const { rows, dtypes, known } = matching(rowsOf(matrixState.scenarios), query);
  const opened = rows.length <= 3 && (known.length > 0 || dtypes.length > 0);
  const body = el("tbody", { class: "ops" });
  let profile = "";
  for (const row of rows) {
    if (row.profile !== profile) body.append(el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: shown.length + 1 }, (profile = row.profile))));
    body.append(...rowAndDtypes(row, shown, opened));
  }
  const versions = entries.length > newest.length;
  const tools = el("div", { class: "tools" },
    selectOf("Show", [["ops", "ops"], ["scenarios", "graphs, caches, memory, misuse"]], matrixState.scenarios ? "scenarios" : "ops", (value) => { matrixState.scenarios = value === "scenarios"; draw(); }),
    versions && el("label", {}, el("input", { type: "checkbox", checked: matrixState.versions, onchange: (event) => { matrixState.versions = event.target.checked; draw(); } }), " older versions, too"),
    legend());
  const note = el("p", { class: "note" }, "Beside a mark: how many dtypes are right. A click on an op shows its dtypes: the worst error as a share of its bound and, where a hunt looked for it, in units of the last place (ulp): near 0 a result may have lost many of them, and still lie within its bound.");
  const heads = [el("th", { scope: "col" }, matrixState.scenarios ? "Scenario" : "Op"), ...shown.map((entry) => head(entry, badge(entry)))];
  const table = rows.length ? tableOf("Engines by ops", heads, [body], "matrix") : el("p", { class: "empty" }, "No op has this name and dtype. ", el("a", { href: address("faults", query) }, "Look in the faults"), " or ", el("a", { href: address("engines", query) }, "in the engines"), ".");
  return [tools, note, table];
}

function rowAndDtypes(row, shown, opened) {
  const scenario = row.dtypes.has("");
  const name = scenario ? row.name.replaceAll("_", " ") : row.name;
  let subs = [];
  const button = el("button", { class: "row", type: "button", "aria-expanded": "false" }, name);
  const main = el("tr", {}, el("th", { scope: "row" }, scenario ? name : button), ...shown.map((entry) => cellOf(entry, row)));
  const toggle = () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    if (open) main.after(...(subs = dtypeRows(row, shown)));
    else subs.forEach((each) => each.remove());
  };
  if (scenario) return [main];
  main.addEventListener("click", toggle);
  if (!opened) return [main];
  button.setAttribute("aria-expanded", "true");
  return [main, ...(subs = dtypeRows(row, shown))];
}

function legend() {
  return el("ul", { class: "key", "aria-label": "Marks" }, ...Object.entries(MARKS).map(([kind, mark]) => el("li", { title: WORDS[kind] }, el("span", { class: `mark ${kind}` }, mark), SHORT[kind])));
}

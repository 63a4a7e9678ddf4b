// The other views: engines, errors, speed, refused calls, versions, faults, two engines side by side.
"use strict";

function facts(pairs) {
  return el("dl", {}, ...pairs.filter(([, value]) => value).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

function subnormals(entry) {
  if (!entry.flushed.length) return "kept, as declared";
  const many = entry.flushed.length > 6 ? `${entry.flushed.length} ops` : entry.flushed.join(", ");
  return `flushed to zero, as declared: ${many}`;
}

function engineCard(entry) {
  const own = faults.filter((fault) => entry.projects.includes(fault.project));
  const { passed, unsupported } = entry.counts;
  const failed = entry.counts.failed + (entry.counts.known ?? 0);
  return el("article", { class: "card", id: `engine-${entry.id}` },
    el("header", {}, el("h3", {}, fullName(entry)), badge(entry), entry.current ? "" : suiteOf(entry)),
    el("p", { class: "note" }, levels[entry.level]),
    entry.waivers.length > 0 && el("ul", { class: "waivers", "aria-label": "What lessens it" }, ...entry.waivers.map((waiver) => el("li", {}, waiver))),
    facts([
      ["calls", `${count(passed)} right, ${count(failed)} wrong, ${count(unsupported)} unsupported`],
      ["device", entry.device], ["package", entry.distribution === `${entry.engine}==${entry.version}` ? "" : entry.distribution], ["flags", entry.flags.join(" ") || "none"], ["plugin", entry.plugin],
      ["subnormals", subnormals(entry)],
      ["same bits each run", entry.deterministic == null ? "" : entry.deterministic ? "promised and proven" : "not promised"],
      ["command", el("code", {}, entry.command)], ["machine", entry.machine], ["date", entry.date],
      ["suite", `${entry.suite}${entry.digest ? `, ${entry.digest.slice(0, 12)}` : ""}, seed ${entry.seed}, size ${entry.size}`],
      ["faults known", own.length ? el("a", { href: `#faults/${encodeURIComponent(entry.projects[0])}` }, `${own.length}, each with a script`) : ""],
      ["files", el("span", {}, ...entry.files.flatMap((name) => [file(entry, name), " "]))],
      ["note", entry.note],
    ]),
    Object.keys(entry.avoidances).length > 0 && el("details", {}, el("summary", {}, `${Object.keys(entry.avoidances).length} ops and dtypes that the plugin does not leave to the library`),
      el("ul", {}, ...Object.entries(entry.avoidances).map(([call, why]) => el("li", {}, el("code", {}, call), `: ${why}`)))));
}

function enginesView(query) {
  const shown = entries.filter((entry) => includesAll(JSON.stringify([fullName(entry), entry.engine, entry.device, entry.flags, entry.level, subnormals(entry), entry.flushed, entry.waivers, entry.plugin]), query));
  const head = ["Engine", "Level", "Subnormals", "Unsupported", "Fail", "Refused at compile", "Suite"].map((text) => el("th", { scope: "col" }, text));
  const rows = shown.map((entry) => {
    const typed = entry.lines.filter((line) => line[DTYPE]);
    const lacking = typed.filter((line) => line[STATE] === "unsupported").length;
    const failed = entry.counts.failed + (entry.counts.known ?? 0);
    return el("tr", {}, el("th", { scope: "row" }, el("a", { href: `#engine-${entry.id}` }, fullName(entry)), el("small", { class: "note" }, ` ${entry.device}`)),
      el("td", {}, badge(entry)), el("td", {}, entry.flushed.length ? `flushed in ${entry.flushed.length} ops` : "kept"),
      el("td", {}, `${lacking} of ${typed.length} ops and dtypes`), el("td", {}, `${count(failed)} calls`),
      el("td", {}, `${count(entry.refusals.reduce((sum, each) => sum + each.calls, 0))} calls`), el("td", {}, suiteOf(entry)));
  });
  if (!shown.length) return [el("p", { class: "empty" }, "No engine matches.")];
  return [tableOf("Engines", head, [el("tbody", {}, ...rows)]),
    el("p", { class: "note" }, "In the order of names. Subnormals are what the engine declares for its bounds: a wrong declaration fails its calls, and an engine that declares to flush may still keep some."),
    el("div", { class: "cards" }, ...shown.map(engineCard))];
}

const errorsState = { dtype: "f32" };

function errorsView(query) {
  const hunted = entries.filter((entry) => entry.worst.length);
  if (!hunted.length) return [el("p", { class: "empty" }, "No entry has a hunt.")];
  const dtypes = [...new Set(hunted.flatMap((entry) => entry.worst.map((each) => each.dtype)))].sort(byDtype);
  const names = [...new Set(hunted.flatMap((entry) => entry.worst.filter((each) => each.dtype === errorsState.dtype).map((each) => each.name)))].sort();
  const wanted = readQuery(query).ops;
  const rows = names.filter((name) => wanted.every((word) => name.includes(word))).map((name) => el("tr", {}, el("th", { scope: "row" }, name), ...hunted.map((entry) => errorCell(entry, name))));
  return [el("div", { class: "tools" }, selectOf("dtype", dtypes.map((dtype) => [dtype, dtype]), errorsState.dtype, (value) => { errorsState.dtype = value; draw(); })),
    el("p", { class: "note" }, "The largest errors that a hunt found, in units of the last place of the result's dtype: 0.5 at most if only the result is rounded. Below each, the call. Sums that cancel have any number of last places: there, only the bound counts. Entries without a hunt are left out."),
    tableOf("Worst errors in last places", [el("th", { scope: "col" }, "Op"), ...hunted.map((entry) => head(entry, el("small", {}, `hunt of ${entry.hunted}`)))], [el("tbody", {}, ...rows)])];
}

function errorCell(entry, name) {
  const places = entry.worst.find((each) => each.name === name && each.dtype === errorsState.dtype)?.extremes.last_places;
  if (!places) return el("td", { class: "untried" }, MARKS.untried);
  return el("td", {}, places.last_places > 1e6 ? "over 1,000,000 ulp" : `${ulps(places.last_places)} ulp`, el("small", {}, `${(100 * places.share).toFixed(1)} % of its bound`, el("br"), el("code", {}, places.element)));
}

const speedState = { tokens: 1 };

function speedView(query) {
  const timed = newest.filter((entry) => entry.speeds.length);
  const wanted = readQuery(query).ops;
  const keys = [...new Set(timed.flatMap((entry) => entry.speeds.map((each) => `${each.op} ${each.dtype}`)))].filter((key) => wanted.every((word) => key.includes(word)));
  const at = (entry, key) => entry.speeds.find((each) => `${each.op} ${each.dtype}` === key && each.tokens === speedState.tokens);
  const most = Math.max(1, ...timed.flatMap((entry) => keys.map((key) => at(entry, key)?.times ?? 1)));
  const rows = keys.map((key) => el("tr", {}, el("th", { scope: "row" }, key), ...timed.map((entry) => speedCell(at(entry, key), most))));
  return [el("div", { class: "tools" }, selectOf("Tokens", [1, 16, 128].map((n) => [String(n), `${n}`]), String(speedState.tokens), (value) => { speedState.tokens = Number(value); draw(); })),
    el("p", { class: "note" }, "Ops of a Llama of 1B. How many times faster than the reference, cpu_ref, in the same run on the entry's machine: compare ratios within a column freely, and between columns only if machine and device are alike. Bars are logarithmic. A busy machine moves these figures; nobody can check them afterwards."),
    tableOf("Speed beside the reference", [el("th", { scope: "col" }, "Op"), ...timed.map((entry) => head(entry, el("small", {}, entry.device)))], [el("tbody", {}, ...rows)])];
}

function speedCell(each, most) {
  if (!each) return el("td", { class: "untried" }, MARKS.untried);
  const wide = Math.max(0, Math.log10(each.times * 10) / Math.log10(most * 10)) * 9;
  const bar = el("span", { class: "bar" });
  bar.style.width = `${wide.toFixed(2)}rem`;
  return el("td", {}, `${each.times.toPrecision(3)} ×`, el("small", {}, `${(each.seconds * 1e3).toPrecision(3)} ms`), bar);
}

function refusedView(query) {
  const parts = entries.filter((entry) => entry.refusals.length || entry.failures.length || entry.lines.some((line) => line[STATE] === "unsupported"));
  return [el("p", { class: "note" }, "What each engine does not compute: calls that fail, calls refused when they are compiled, and ops and dtypes that it declares unsupported."),
    ...parts.map((entry) => refusedOf(entry, query))];
}

function refusedOf(entry, query) {
  const lacking = entry.lines.filter((line) => line[DTYPE] && line[STATE] === "unsupported" && includesAll(`${fullName(entry)} ${line[NAME]} ${line[DTYPE]} unsupported`, query));
  const op = (line) => `${line[NAME]}${line[PROFILE] === "core" ? "" : ` (${line[PROFILE]})`}`;
  const byOp = lacking.reduce((map, line) => map.set(op(line), [...(map.get(op(line)) ?? []), line]), new Map());
  const refused = entry.refusals.filter((each) => includesAll(`${fullName(entry)} ${each.name} ${each.dtype} ${each.reason} refused`, query));
  const failed = entry.failures.filter((each) => includesAll(`${fullName(entry)} ${each.item} ${each.dtype ?? ""} ${each.message} ${each.reason ?? ""} fails wrong`, query));
  if (!lacking.length && !refused.length && !failed.length) return "";
  const lines = [...byOp].map(([name, own]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, own.map((line) => line[DTYPE]).sort(byDtype).join(", ")), el("td", {}, "declared unsupported")));
  lines.unshift(...refused.map((each) => el("tr", {}, el("th", { scope: "row" }, each.kind || each.name), el("td", {}, each.dtype), el("td", {}, `${each.calls} calls refused at compile: ${each.reason}`))));
  const cards = byCause(failed).map(causeCard);
  return el("section", {}, el("h2", {}, fullName(entry)), ...cards, lines.length && tableOf(`Refused by ${fullName(entry)}`, ["Op", "dtypes", "Reason"].map((text) => el("th", { scope: "col" }, text)), [el("tbody", {}, ...lines)]));
}

/** Failures by the reasons that the file of known failures gives; what has none comes first. */
function byCause(failed) {
  const causes = new Map();
  for (const each of failed) causes.set(each.reason ?? "", [...(causes.get(each.reason ?? "") ?? []), each]);
  return [...causes].sort(([a], [b]) => Boolean(a) - Boolean(b));
}

function causeCard([reason, failed]) {
  const calls = failed.reduce((sum, each) => sum + (each.count ?? 1), 0);
  const ops = [...new Set(failed.map((each) => each.item.split("/")[1]))];
  return el("details", { class: "cause" }, el("summary", {}, el("span", { class: "mark failing" }, "✗"), ` ${reason ? `Known: ${reason} ` : "Not explained yet "}`, el("small", {}, `${count(calls)} ${calls === 1 ? "call" : "calls"} of ${ops.join(", ")}`)),
    reason && el("p", {}, reasonLink(failed[0].link)), ...failed.map(failureCard));
}

function failureCard(each) {
  return el("details", {}, el("summary", {}, `${each.item} `, el("small", {}, [each.check, each.dtype, each.count > 1 ? `${each.count} alike` : ""].filter(Boolean).join(", "))),
    el("p", {}, each.message), el("code", {}, each.call ?? ""), each.script && el("div", {}, copyButton(each.script), el("pre", { tabindex: 0 }, each.script)));
}

/** A link to the program, or to the page, that explains a known failure. */
function reasonLink(link) {
  const script = faults.find((fault) => link.endsWith(`${fault.id}.py`));
  if (script) return el("a", { href: `#faults/${script.id}` }, link);
  return link.startsWith("https://") ? el("a", { href: link, rel: "noopener" }, link) : link;
}

function versionsView(query) {
  const rows = REGISTER.fault_versions.filter((row) => includesAll(`${row.project} ${row.version} new wrong faults mended`, query));
  const item = (each) => el("li", {}, el("a", { href: `#faults/${each.id}` }, faults.find((fault) => fault.id === each.id).fault), el("small", {}, ` (before: ${each.before})`));
  const list = (found, kind, word) => found.length > 0 && el("div", {}, el("strong", { class: kind }, `${word}: ${found.length}`), el("ul", {}, ...found.map(item)));
  const sections = rows.map((row) => el("section", {}, el("h2", {}, `${row.project} ${row.version}`), list(row.new, "worse", "✗ new wrong"), list(row.mended, "better", "✓ mended")));
  const compared = changes.map((change) => changesOf(change, query)).filter(Boolean);
  return [el("p", { class: "note" }, "The versions in which a fault of the ledger came or went, each shown by its script on this version and on the one named as before; those between the two were not tried. With two entries of one engine, what their certificates say differently stands first."),
    ...compared, ...sections, compared.length || sections.length ? "" : el("p", { class: "empty" }, "No version with this name changed a fault that was tried.")];
}

function changesOf(change, query) {
  const [before, after] = [change.before, change.after].map((id) => entries.find((entry) => entry.id === id));
  if (!includesAll(`${fullName(after)} new worse better changed`, query)) return null;
  const row = (kind, word) => (each) => el("tr", {}, el("td", { class: kind }, word), el("th", { scope: "row" }, each.what), el("td", {}, each.kind), el("td", {}, each.before), el("td", {}, each.after));
  const rows = [...change.worse.map(row("worse", "✗ worse")), ...change.better.map(row("better", "✓ better")), ...change.slower.map(row("worse", "slower")), ...change.faster.map(row("better", "faster")), ...change.other.map(row("", "other"))];
  const heads = ["", "Op and dtype", "", before.version, after.version].map((text) => el("th", { scope: "col" }, text));
  return el("section", {}, el("h2", {}, `${before.title}: ${before.version} → ${after.version}`), ...change.notes.map((note) => el("p", { class: "note" }, note)),
    rows.length ? tableOf(`Changes of ${before.title}`, heads, [el("tbody", {}, ...rows)]) : el("p", {}, "Nothing changed."));
}

function faultsView(query, chosen) {
  const projects = [...new Set(faults.map((fault) => fault.project))].sort((a, b) => a.localeCompare(b, "en", { sensitivity: "base" }));
  const one = faults.find((fault) => fault.id === chosen);
  const project = projects.includes(chosen) ? chosen : "";
  const shown = faults.filter((fault) => (one ? fault === one : !project || fault.project === project) && includesAll(`${fault.project} ${fault.fault} ${fault.effect} ${fault.shown} ${fault.id}`, one ? "" : query));
  const cards = shown.map((fault) => el("details", { id: fault.id, open: fault === one }, el("summary", {}, el("strong", {}, fault.project), ` ${fault.fault} `, el("small", {}, `shown in ${fault.shown}`)),
    facts([["effect", fault.effect], ["shown in", fault.shown], ["right in", fault.right], ["needs", fault.needs === "none" ? "" : fault.needs], ["timing", fault.timing === "none" ? "" : fault.timing],
      ["upstream", fault.thread.startsWith("https://") ? el("a", { href: fault.thread, rel: "noopener" }, fault.thread.replace("https://github.com/", "")) : "not reported, as far as a search found"],
      ["workaround here", fault.workaround], ["file", `lab/found/${fault.id}.py`], ["report to file", fault.report]]),
    copyButton(fault.script), el("pre", { tabindex: 0 }, fault.script)));
  return [el("div", { class: "tools" }, selectOf("Project", [["", "all projects"], ...projects.map((each) => [each, `${each} (${faults.filter((fault) => fault.project === each).length})`])], project, (value) => { location.hash = `faults/${encodeURIComponent(value)}`; })),
    el("p", { class: "note" }, `${shown.length} faults in the code of others. Each script runs without backbay, prints what it expects and what came, and ends with status 0 if the fault is there.`), ...cards];
}

const judged = newest.filter((entry) => entry.current && entry.engine !== "cpu_ref");
const pairState = { left: (judged[0] ?? newest[0])?.id, right: (judged[1] ?? newest[0])?.id, by: "state" };
const DIFFERENCES = { state: "that differ in state", precision: "that differ in state or precision", all: "all" };

function pairView(query) {
  const options = entries.map((entry) => [entry.id, fullName(entry)]);
  const [left, right] = [pairState.left, pairState.right].map((id) => entries.find((entry) => entry.id === id) ?? entries[0]);
  const { dtypes, ops } = readQuery(query);
  const rows = rowsOf(false).flatMap((row) => [...row.dtypes].sort(byDtype).map((dtype) => [row, dtype, lineOf(left, row.profile, row.name, dtype), lineOf(right, row.profile, row.name, dtype)]))
    .filter(([row, dtype, a, b]) => (a || b) && (!dtypes.length || dtypes.includes(dtype)) && ops.every((word) => row.name.includes(word)) && differs(a, b));
  const body = rows.map(([row, dtype]) => el("tr", {}, el("th", { scope: "row" }, `${row.name} ${dtype}`, row.profile === "core" ? "" : el("small", { class: "note" }, ` ${row.profile}`)), ...[left, right].map((entry) => pairCell(entry, row, dtype))));
  return [el("div", { class: "tools" }, ...["left", "right"].map((side) => selectOf(side === "left" ? "Left" : "Right", options, (side === "left" ? left : right).id, (value) => { pairState[side] = value; draw(); })),
    selectOf("Lines", Object.entries(DIFFERENCES), pairState.by, (value) => { pairState.by = value; draw(); })),
  el("p", { class: "note" }, `${rows.length} lines: ${DIFFERENCES[pairState.by]}. Errors are shares of each engine's own bound, which follows from its declared precision.`),
  tableOf("Two engines side by side", [el("th", { scope: "col" }, "Op and dtype"), head(left, badge(left)), head(right, badge(right))], [el("tbody", { class: "ops" }, ...body)], "matrix")];
}

function differs(a, b) {
  if (pairState.by === "all") return true;
  if (!a || !b) return false;
  return KIND[a[STATE]] !== KIND[b[STATE]] || (pairState.by === "precision" && String(a[PRECISIONS]) !== String(b[PRECISIONS]));
}

function pairCell(entry, row, dtype) {
  const cell = dtypeCell(entry, row, dtype);
  const line = lineOf(entry, row.profile, row.name, dtype);
  if (line) cell.firstChild.append(el("small", {}, ` ${line[PRECISIONS].join(", ")}`));
  return cell;
}

"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const runs = new Map(); // id -> everything a run shows, once it is unpacked
  const root = document.documentElement;
  const one = (id) => document.getElementById(id);
  const every = (selector, root = document) => [...root.querySelectorAll(selector)];
  const rows = every("#table tbody tr");
  const sections = every(".run");

  // An element with children; strings become text, never markup.
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null));
    return made;
  }

  // -- what is packed -----------------------------------------------------------------------------------------

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(one(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // Runs and plotly.js are unpacked once, when they are first needed or the browser has nothing else to do.
  let ready, plotly, library;
  const unpacked = () => (ready ??= unpack("runs-data").then((text) => {
    for (const run of JSON.parse(text)) runs.set(run.id, run);
  }).catch(() => { one("status").textContent = "Runs can't be shown: this needs a browser of 2023 or newer."; }));
  const drawing = () => (plotly ??= unpack("plotly").then((text) => { library = text; }));

  // -- filter, sort, download ---------------------------------------------------------------------------------

  const filters = ["rule", "setting", "verdict"];

  function filter() {
    const fits = (e) => filters.every((name) => !one(name).value || one(name).value === e.dataset[name]);
    for (const e of [...rows, ...sections]) e.hidden = !fits(e);
    const shown = (list) => list.filter((e) => !e.hidden).length;
    one("status").textContent =
      `${shown(rows)} of ${rows.length} settings and ${shown(sections)} of ${sections.length} runs shown.`;
  }

  // Filters, axes and the column that sorts stand in the address: what a reader sees can be sent to another.
  const kept = [...filters, "x", "y"];
  let sorted = "";
  function keep() {
    const query = new URLSearchParams(kept.filter((name) => one(name).value && one(name).selectedIndex).map((name) => [name, one(name).value]));
    if (sorted) query.set("sort", sorted);
    const text = query.toString();
    try {
      history.replaceState(null, "", `${location.pathname}${text ? `?${text}` : ""}${location.hash}`);
    } catch { /* a page inside another may not change its address */ }
  }

  function restore() {
    const query = new URLSearchParams(location.search);
    for (const name of kept) if ([...one(name).options].some((o) => o.value === query.get(name))) one(name).value = query.get(name);
    const [key, down] = (query.get("sort") ?? "").split("-");
    const head = every("#table thead th").find((h) => h.dataset.key === key);
    if (head) sortBy(head, down === "down");
  }

  function reset() {
    for (const name of filters) one(name).value = "";
    filter();
    keep();
  }

  for (const name of kept) one(name).addEventListener("change", () => { filter(); keep(); });
  one("reset").addEventListener("click", reset);

  // What is not known stands last in either direction.
  function compare(a, b, down) {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
    return down ? -order : order;
  }

  function sortBy(head, down) {
    for (const other of every("#table thead [aria-sort]")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    rows.sort((a, b) => compare(a.cells[head.cellIndex].dataset.sort, b.cells[head.cellIndex].dataset.sort, down));
    rows[0].parentNode.append(...rows);
    sorted = `${head.dataset.key}${down ? "-down" : ""}`;
  }

  for (const head of every("#table thead th")) {
    head.firstChild.addEventListener("click", () => { sortBy(head, head.getAttribute("aria-sort") === "ascending"); keep(); });
  }

  function download(name, text, type) {
    const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
    link.click();
    URL.revokeObjectURL(link.href);
  }

  // The rows that are shown, in the order they are shown.
  const chosen = () => rows.filter((row) => !row.hidden).map((row) => Number(row.dataset.index));
  const csv = () => [data.csv[0], ...chosen().map((i) => data.csv[i + 1])].join("\r\n") + "\r\n";
  const latex = () => [...data.latex[0], ...chosen().map((i) => data.latex[1][i]), ...data.latex[2]].join("\n") + "\n";
  one("csv").addEventListener("click", () => download("verdicts.csv", csv(), "text/csv"));
  one("latex").addEventListener("click", () => download("verdicts.tex", latex(), "application/x-tex"));

  // -- one run ------------------------------------------------------------------------------------------------

  const said = (m) =>
    el("span", { class: `said ${m.kind}` }, m.mark && el("span", { class: "mark", "aria-hidden": "true" }, m.mark), ` ${m.word}`);

  function table(head, body, kind) {
    const cells = (row) => row.map((cell, i) => (i ? el("td", {}, cell) : el("th", { scope: "row" }, cell)));
    const box = el("div", { class: "scroll" },
      el("table", { class: kind },
        head ? el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))) : null,
        el("tbody", {}, ...body.map((row) => el("tr", {}, ...cells(row))))));
    return el("div", {}, cue(box), box);
  }

  // What is wider than its place says so, and fades out at the edge until it is scrolled to its end.
  function cue(box) {
    const made = el("div", { class: "cue muted screen", "aria-hidden": "true" }, "scroll →");
    const look = () => {
      made.hidden = box.scrollWidth <= box.clientWidth + 1;
      box.classList.toggle("more", box.scrollLeft + box.clientWidth + 1 < box.scrollWidth);
    };
    new ResizeObserver(look).observe(box);
    box.addEventListener("scroll", look);
    made.hidden = true;
    return made;
  }

  function layerTable(run) {
    const made = table(run.layers.head, run.layers.rows, "numbers");
    made.querySelector("tbody").lastChild.className = "limits";
    return made;
  }

  const list = (lines) => el("ul", { class: "about" }, ...lines.map((line) => el("li", {}, line)));
  const step = (s) =>
    el("li", { class: { true: "good", false: "bad", null: "none" }[s.holds] },
      el("b", {}, el("span", { class: "mark" }, String(s.step)), ` ${s.title} ${s.mark}`), s.text);

  function fill(section) {
    const body = section.querySelector(".body");
    const run = runs.get(section.id);
    if (body.firstChild || !run) return;
    const control = run.verdict.word === "control";
    body.append(
      el("p", {}, el("span", { class: "name" }, run.name), " · ", el("a", { href: `#${run.id}` }, "link to this run")),
      ...(run.notes ? [el("p", { class: "notes" }, run.notes)] : []),
      ...(run.beside ? [el("p", { class: "beside" }, run.beside)] : []),
      ...(control ? [el("p", {}, "A frozen control: what D3 compares with. It claims nothing, so nothing is judged.")] : verdict(run)),
      el("h4", {}, "Per layer"),
      ...(run.layers.rows.length ? [figures(layerPanels(run)), layerTable(run)] : ["not measured"]),
      ...run.depths.map((t) => table(t.head, t.rows, "numbers")),
      list(run.about),
      el("h4", {}, "Training replay"),
      el("p", {}, fired(run)),
      figures(replayPanels(run)),
      epochs(run),
      el("h4", {}, "Aggregation spread"),
      ...aggregation(run),
      el("h4", {}, "Conditions of measurement"),
      el("div", { class: "columns" },
        table(null, run.recipe, "pairs"), table(null, run.conditions, "pairs"), table(null, run.machine, "pairs")));
  }

  function verdict(run) {
    const check = (c) => [c.check, c.title, said(c.result), c.value, c.flags, c.distance, c.todo];
    const frozen = run.control
      ? ["; its frozen control reaches ", el("a", { href: `#${run.control.id}` }, run.control.acc.toFixed(3))]
      : ["; its frozen control is not in the store"];
    return [
      el("p", {}, el("strong", {}, said({ ...run.verdict, word: run.line })),
        ...run.questions.flatMap(([name, answer]) => [` · ${name} `, said(answer)])),
      el("p", {}, `Accuracy ${run.acc.toFixed(3)}`, ...frozen, "."),
      el("h4", {}, "Walk-back chain"),
      el("ol", { class: "chain" }, ...run.chain.map(step)),
      table(["check", "", "result", "value", "flags when", "distance", "what to do"], run.checks.map(check), "checks"),
      ...(run.remarks.length ? [list(run.remarks)] : []),
    ];
  }

  function fired(run) {
    const { fired, epoch, diverged } = run.replay;
    const when = Object.entries(fired).map(([check, at]) => (at === null ? `${check} never flags` : `${check} first flags at epoch ${at}`));
    const said = when.length ? when.join(", ") : "No check could be replayed";
    return `${said} (${epoch.at(-1)} epochs; epoch 0 is the initialisation)${diverged ? `; diverged: ${diverged}` : ""}.`;
  }

  function epochs(run) {
    const r = run.replay;
    const columns = { "epoch": r.epoch, "test accuracy": r.acc, "‖h_L‖": r.h_norm, "‖g_L‖": r.g_norm, "growth ρ": r.growth, "Γ": r.gamma };
    const box = el("details", {}, el("summary", {}, "Every epoch as a table"));
    box.addEventListener("toggle", () => {
      if (box.children.length > 1) return;
      const body = r.epoch.map((_, i) => Object.values(columns).map((values) => String(values[i] ?? "–")));
      box.append(el("div", { class: "epochs" }, table(Object.keys(columns), body, "numbers")));
    });
    return box;
  }

  function aggregation(run) {
    const orders = Object.entries(run.aggregates).filter(([, value]) => value !== null);
    if (!orders.length) return [el("p", {}, "Γ was not measured.")];
    const values = orders.map(([, value]) => value);
    const spread = Math.max(...values) - Math.min(...values);
    const fresh = run.fresh && run.fresh.gamma;
    const sentence = `Γ runs from ${signed(Math.min(...values))} to ${signed(Math.max(...values))}, a spread of ${spread.toFixed(3)}, ` +
      "over the order of averaging" +
      (fresh ? `; with fresh feedback it is ${signed(fresh.mean)} ± ${fresh.std.toFixed(3)} (${run.fresh.draws} draws)` : "") + ".";
    const body = orders.map(([name, value]) => [name, signed(value)]);
    return [el("p", {}, sentence),
      el("div", { class: "columns" }, figures([aggregatePanel(orders, fresh, sentence)]), table(["averaged over", "Γ"], body, "numbers"))];
  }

  // -- figures ------------------------------------------------------------------------------------------------

  const signed = (value) => (value.toFixed(3) < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
  function short(value) {
    if (value === null || value === undefined) return "not measured";
    const plain = value === 0 || (Math.abs(value) >= 1e-2 && Math.abs(value) < 1e4);
    return plain ? String(Number(value.toPrecision(3))) : value.toExponential(1).replace("e+", "e").replace(".0e", "e");
  }

  // Whole decades where there are some, else 1, 2 and 5 of each: plotly.js would label all nine; within one, its choice.
  function decades(traces) {
    const logs = traces.flatMap((t) => t.y).filter((v) => v > 0).map(Math.log10);
    const span = Math.max(...logs) - Math.min(...logs);
    return { type: "log", exponentformat: "power", ...(span > 1.5 ? { dtick: Math.ceil(span / 5) } : span > 0.8 ? { dtick: "D2" } : { nticks: 5 }) };
  }

  // Values that differ by rounding only are shown as one: the axis does not zoom in on less than 0.02.
  function around(traces) {
    const values = traces.flatMap((t) => t.x), low = Math.min(...values), high = Math.max(...values);
    return high - low < 0.02 && traces.length === 1 ? { range: [low - 0.05, high + 0.05] } : {};
  }

  const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const dashed = (name, x, y) => ({ name, x, y, mode: "lines", line: { dash: "dash", width: 2 }, role: "--bad" });
  const series = (name, x, y) => ({ name, x, y, mode: x.length > 30 ? "lines" : "lines+markers", marker: { size: 7 }, line: { width: 2 }, role: "--series" });

  // What is drawn is given: here it becomes traces and a caption.
  function layerPanels(run) {
    const sites = (values) => values.map((_, i) => i);
    const bandWords = ([low, high]) => `Band of the null by site: ${low.map((v, i) => `${short(v)} to ${short(high[i])}`).join(", ")}`;
    const said = {
      "‖h‖": (p) => ` Dashed: ${p.limit} × the site before, where D1 flags.`,
      "‖g‖": (p) => (p.limit === null ? "" : ` Dashed: the floor of ${p.limit}.`),
      "cosine": (p) => ` ${run.null || bandWords(p.band)}.`,
      "accuracy": (p) => ` Linear probes of the trained network. ${Object.entries(p.others).map(([name, v]) => `${name}: ${v.map(short).join(", ")}`).join(". ")}.`,
    };
    const styles = [["dash", "--blue", "square"], ["longdash", "--bad"], ["dot", "--good"]]; // never by colour alone
    const beside = ([name, y], i) => ({ name, x: sites(y), y, mode: styles[i][2] ? "lines+markers" : "lines", line: { width: 2, dash: styles[i][0] },
      marker: { size: 6, symbol: styles[i][2] ?? "circle" }, role: styles[i][1] });
    const dashes = { "‖h‖": (p) => `${p.limit} × before`, "‖g‖": (p) => `floor ${p.limit}` };
    const edge = (y, more) => ({ name: "null band", x: sites(y), y, mode: "lines", line: { width: 0 }, role: "--sky", ...more });
    return run.panels.map((p) => {
      const from = p.name === "‖h‖" ? 1 : 0; // the first site has none before it
      return { title: `${p.name} by site`, log: p.log, x: "site",
        caption: `${p.name} by site: ${p.values.map(short).join(", ")}.${said[p.name](p)}`,
        traces: [
          ...(p.band.length ? [edge(p.band[0], { showlegend: false, hoverinfo: "skip" }), edge(p.band[1], { fill: "tonexty" })] : []),
          series(p.name === "accuracy" ? "trained" : p.name, sites(p.values), p.values),
          ...Object.entries(p.others).map(beside),
          ...(p.dashes.length ? [dashed(dashes[p.name](p), sites(p.dashes).slice(from), p.dashes.slice(from))] : []),
          ...(p.marks.some((v) => v !== null) ? [{ name: "clamped at ε", x: sites(p.marks), y: p.marks, mode: "markers", marker: { symbol: "diamond-open", size: 11 }, role: "--open" }] : [])] };
    });
  }

  function replayPanels(run) {
    const r = run.replay, last = r.epoch.at(-1);
    const limit = run.limits.growth, floor = run.limits.reference;
    const lines = Object.entries(r.fired).filter(([, at]) => at !== null);
    const panel = (title, values, more) => ({ title, x: "epoch", lines,
      caption: `${title} from ${short(values[0])} at epoch 0 to ${short(values.at(-1))} at epoch ${last}.`,
      traces: [series(title, r.epoch, values), ...more.map(([name, y]) => dashed(name, [0, last], [y, y]))], });
    return [
      { ...panel("‖h_L‖", r.h_norm, []), log: true },
      { ...panel("‖g_L‖", r.g_norm, [[`floor ${floor}`, floor]]), log: true },
      { ...panel("growth ρ", r.growth, [[`D1 at ${limit}`, limit]]), log: true },
      panel("test accuracy", r.acc, run.control ? [["frozen control, last epoch", run.control.acc]] : []),
    ].filter((p) => p.traces[0].y.some((value) => value !== null));
  }

  function aggregatePanel(orders, fresh, caption) {
    const names = orders.map(([name]) => name), values = orders.map(([, value]) => value);
    const traces = [{ name: "Γ", x: values, y: names, mode: "markers", marker: { size: 11 }, role: "--series" }];
    if (fresh) traces.push({ name: "fresh feedback ± 2 std", x: [fresh.mean], y: ["fresh feedback"], mode: "markers",
      marker: { size: 10, symbol: "diamond-open" }, error_x: { type: "data", array: [2 * fresh.std] }, role: "--bad" });
    return { title: "Γ by order of averaging", caption, across: true, traces, quiet: true };
  }

  function figures(panels) {
    return el("div", { class: "panels" }, ...panels.map((panel) => {
      const plot = el("div", { class: panel.tall ? "plot tall" : "plot", role: "group", "aria-label": panel.caption });
      plot.panel = panel;
      waiting.observe(plot);
      return el("figure", {}, el("b", {}, panel.title), plot, panel.quiet ? null : el("figcaption", {}, panel.caption));
    }));
  }

  // plotly.js is large: it becomes a script when the first figure is seen, and a figure is drawn when it is seen.
  const waiting = new IntersectionObserver((entries) => {
    const seen = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
    if (seen.length) drawing().then(() => seen.forEach((plot) => draw(plot)));
  }, { rootMargin: "300px" });

  function draw(plot, width) {
    if (!library) return;
    if (!window.Plotly) {
      const script = el("script");
      script.textContent = library;
      document.head.append(script);
    }
    waiting.unobserve(plot);
    const { traces, log, logX, x, y, lines = [], across } = plot.panel;
    const ink = css("--ink"), paper = css("--paper"), grid = "rgba(128,128,128,.28)";
    const colour = (t) => ({ ...t, line: { ...t.line, color: t.fixed ?? css(t.role) }, marker: { ...t.marker, color: t.fixed ?? css(t.role) },
      ...(t.fill ? { fillcolor: "rgba(86,180,233,.3)" } : {}), ...(t.error_x ? { error_x: { ...t.error_x, color: css(t.role) } } : {}) });
    const axis = { gridcolor: grid, zerolinecolor: "rgba(128,128,128,.7)", linecolor: grid, automargin: true, hoverformat: ".4g" };
    const layout = {
      ...(width ? { width } : { autosize: true }),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 11, family: "system-ui, DejaVu Sans, sans-serif" },
      margin: { l: 50, r: 12, t: 30, b: 36 },
      xaxis: { ...axis, ...(across ? around(traces) : { hoverformat: "d" }), title: { text: x, standoff: 4 }, ...(logX ? { type: "log", exponentformat: "power" } : {}), ...(across || x === "site" || x === "epoch" ? {} : { hoverformat: ".4g" }), zeroline: Boolean(across), ...(x === "site" ? { dtick: 1 } : {}) },
      yaxis: { ...axis, ...(y ? { title: { text: y } } : {}), ...(log ? decades(traces) : {}), ...(across ? { autorange: "reversed" } : {}) },
      legend: { orientation: "h", x: 0, yref: "container", y: 0, yanchor: "bottom", font: { size: 10 } }, // the toolbar is above
      showlegend: traces.length > 1,
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "rgba(128,128,128,.8)", activecolor: ink },
      hoverlabel: { bgcolor: paper, bordercolor: ink, font: { color: ink } },
      shapes: lines.map(([name, at], i) => ({ type: "line", x0: at, x1: at, yref: "paper", y0: 0, y1: 1, line: { color: ink, width: 1.5, dash: i ? "dot" : "dashdot" } })),
      annotations: lines.map(([name, at], i) => ({ x: at, yref: "paper", y: 0.98 - 0.13 * i, text: name, showarrow: false, xanchor: "left", bgcolor: paper })),
    };
    window.Plotly.react(plot, traces.map(colour), layout,
      { displaylogo: false, showSendToCloud: false, plotlyServerURL: "", responsive: true,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] });
    plot.drawn = true;
  }

  const redraw = () => every(".run[open] .plot, #chart .plot").filter((plot) => plot.drawn).forEach((plot) => draw(plot));

  // On paper: light, all figures of the open runs, three beside each other.
  let theme;
  window.addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
    every(".run[open]").forEach(fill);
    every(".run[open] .plot").forEach((plot) => draw(plot, 320));
  });
  window.addEventListener("afterprint", () => {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    redraw();
  });

  // -- opening, links, theme ----------------------------------------------------------------------------------

  // An open run is filled when it comes into sight: a thousand can be opened at once.
  const closed = new IntersectionObserver((entries) => {
    const seen = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
    if (seen.length) unpacked().then(() => seen.forEach((section) => { closed.unobserve(section); fill(section); }));
  }, { rootMargin: "800px" });

  one("list").addEventListener("toggle", (event) => {
    if (event.target.matches(".run") && event.target.open) closed.observe(event.target);
  }, true);
  one("list").addEventListener("click", (event) => {
    const section = event.target.closest("summary")?.parentNode;
    if (!section?.matches(".run") || section.open || event.target.matches(".pick")) return;
    try { history.replaceState(null, "", `${location.search}#${section.id}`); } catch { /* as above */ }
  });

  one("open").addEventListener("click", () => sections.filter((s) => !s.hidden).forEach((s) => { s.open = true; }));
  one("close").addEventListener("click", () => sections.forEach((s) => { s.open = false; }));

  function follow() {
    const id = decodeURIComponent(location.hash.slice(1));
    if (!id.startsWith("run-")) return;
    const section = one(id);
    if (!section) {
      one("status").textContent = `There is no run ${id} on this page.`;
      return;
    }
    if (section.hidden) reset();
    section.open = true;
    unpacked().then(() => {
      fill(section);
      section.scrollIntoView();
      section.firstElementChild.focus({ preventScroll: true });
    });
  }

  // -- several runs in one figure ------------------------------------------------------------------------------

  const MOST = 40;
  const BY_SITE = { h_norm: "h_norm", g_norm: "g_norm", cosine: "cosine" };
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash"];
  const LOGS = new Set(["h_norm", "g_norm", "growth"]);

  function overlay() {
    const picked = sections.filter((s) => s.querySelector(".pick").checked);
    const chosen = (picked.length ? picked : sections.filter((s) => !s.hidden)).slice(0, MOST).map((s) => runs.get(s.id));
    const x = one("x"), y = one("y"), text = (select) => select.selectedOptions[0].textContent;
    const bySite = x.value === "site" || y.value === "cosine";
    const values = (run) => {
      if (!bySite) return [run.replay[x.value] ?? [], run.replay[y.value] ?? []];
      const list = run.per_layer[BY_SITE[y.value]] ?? [];
      return [list.map((_, site) => site), list];
    };
    const settings = new Set(chosen.map((run) => run.setting)).size;
    const name = (run) => (settings > 1 ? `${run.rule}, ${run.setting}` : run.rule);
    const groups = [...new Set(chosen.map(name))]; // seeds of one rule and setting look alike
    const traces = chosen.map((run) => {
      const [xs, ys] = values(run), group = groups.indexOf(name(run));
      return { name: name(run), seed: run.seed, x: xs, y: ys, mode: xs.length > 30 ? "lines" : "lines+markers", legendgroup: String(group),
        showlegend: groups.length > 1 && chosen.find((other) => name(other) === name(run)) === run, hovertemplate: `%{x}, %{y:.4g}<extra>seed ${run.seed}</extra>`,
        fixed: COLOURS[group % COLOURS.length], marker: { size: 6, symbol: group }, line: { width: 1.8, dash: DASHES[Math.floor(group / COLOURS.length) % DASHES.length] } };
    }).filter((t) => t.y.some((v) => v !== null));
    const box = one("chart");
    if (!traces.length) {
      box.replaceChildren(el("p", {}, bySite && !BY_SITE[y.value] ? `${text(y)} has no value by site: choose ‖h‖, ‖g‖ or the cosine.` : "None of these runs has it."));
      return;
    }
    const across = bySite ? "site" : text(x);
    const caption = `${text(y)} by ${across} of ${traces.length} run${traces.length > 1 ? "s" : ""}: ${traces.map((t) => `${t.name}, seed ${t.seed} ends at ${short(t.y.at(-1))}`).join("; ")}.`;
    box.replaceChildren(figures([{ title: `${text(y)} by ${across}`, caption, quiet: true, x: across, y: text(y), log: LOGS.has(y.value), logX: !bySite && LOGS.has(x.value), traces, tall: true }]));
  }

  one("overlay").addEventListener("click", () => unpacked().then(overlay));
  one("clear").addEventListener("click", () => {
    for (const box of every(".pick")) box.checked = false;
    one("chart").replaceChildren();
  });

  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";

  function themed() {
    one("theme").textContent = dark() ? "Light" : "Dark";
    redraw();
  }

  one("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    themed();
  });
  system.addEventListener("change", themed);
  window.addEventListener("hashchange", follow);
  for (const box of every("main .scroll")) box.before(cue(box));
  restore();
  filter();
  themed();
  follow();
  (window.requestIdleCallback ?? setTimeout)(() => { unpacked(); drawing(); });
})();

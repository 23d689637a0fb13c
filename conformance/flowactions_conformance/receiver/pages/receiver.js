// Shows arrivals as they come. Everything from a request is set as text.
const KEPT = 1000;
const list = document.querySelector("#arrivals");
let newest = 0;

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

function pretty(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}

function rendered(arrival) {
  const summary = element(
    "summary",
    "",
    element("span", `badge ${arrival.signature}`, arrival.signature),
    element("strong", "", arrival.method),
    element("span", "path", arrival.path),
    element("span", "seen", arrival.seen > 1 ? `arrival ${arrival.seen} of this event` : arrival.eventType),
    element("span", "", `→ ${arrival.answer}`),
    element("time", "", new Date(arrival.at * 1000).toLocaleTimeString()),
  );
  const headers = arrival.headers.map(([name, value]) => `${name}: ${value}`).join("\n");
  const inside = element("div", "inside", element("pre", "", headers));
  if (arrival.body) inside.append(element("pre", "", pretty(arrival.body)));
  const item = element("details", "", summary, inside);
  item.dataset.eventId = arrival.eventId;
  item.dataset.signature = arrival.signature;
  return item;
}

async function refresh() {
  const { data } = await (await fetch("/inspect/deliveries")).json();
  document.querySelector("#empty").hidden = data.length > 0;
  for (const arrival of data.filter(({ number }) => number > newest)) list.prepend(rendered(arrival));
  while (list.childElementCount > KEPT) list.lastElementChild.remove();
  newest = data.at(-1)?.number ?? newest;
}

setInterval(() => refresh().catch(() => {}), 1000);
refresh();

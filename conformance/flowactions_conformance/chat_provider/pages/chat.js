// Shows the messages as they arrive. Text is only ever set as text: nothing in a message is executed.
import { formatted } from "./mrkdwn.js";

const list = document.querySelector("#messages");
let shown = 0;
let drawn = "";

function element(tag, className, ...children) {
  const made = document.createElement(tag);
  made.className = className;
  made.append(...children);
  return made;
}

function rendered(message) {
  const time = element("time", "", new Date(Number(message.ts) * 1000).toLocaleTimeString());
  const channel = element("span", "channel", message.channel);
  const head = element("header", "", channel, element("span", "workspace", message.workspace), time);
  const item = element("li", "message", head, element("p", "text", ...formatted(message.text)));
  item.dataset.ts = message.ts;
  item.dataset.channel = message.channel_id;
  return item;
}

// As an administrator of the workspace would: the tokens die, and the events go out.
async function uninstall(workspace) {
  await fetch(`/inspect/workspaces/${encodeURIComponent(workspace.id)}/uninstall`, { method: "POST" });
  await drawWorkspaces();
}

async function drawWorkspaces() {
  const { data } = await (await fetch("/inspect/workspaces")).json();
  if (JSON.stringify(data) === drawn) return;
  drawn = JSON.stringify(data);
  document.querySelector("#workspaces").replaceChildren(
    ...data.map((workspace) => {
      const item = element("li", "", element("strong", "", workspace.name));
      item.dataset.id = workspace.id;
      if (!workspace.installed) item.append(element("small", "", "The app is not installed"));
      else {
        const button = element("button", "quiet", "Uninstall the app");
        button.addEventListener("click", () => uninstall(workspace));
        item.append(button);
      }
      return item;
    }),
  );
}

async function refresh() {
  await drawWorkspaces();
  const { data } = await (await fetch("/inspect/messages")).json();
  document.querySelector("#empty").hidden = data.length > 0;
  for (const message of data.slice(shown)) list.prepend(rendered(message));
  shown = data.length;
}

setInterval(() => refresh().catch(() => {}), 1000);
refresh();

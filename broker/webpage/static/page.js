// Reads the page again after each change that the server reports, while "Live" is on and the page is visible.
(() => {
  "use strict";
  const follow = document.getElementById("follow");
  const status = document.getElementById("followed");
  let source = null;
  const stop = () => {
    if (source) source.close();
    source = null;
  };
  const start = () => {
    stop();
    if (!follow.checked || document.hidden) return;
    source = new EventSource("/changes");
    source.addEventListener("changed", () => htmx.trigger(document.body, "changed"));
  };
  follow.checked = localStorage.getItem("follow") !== "off";
  follow.addEventListener("change", () => {
    localStorage.setItem("follow", follow.checked ? "on" : "off");
    status.textContent = follow.checked ? "" : "paused";
    start();
  });
  status.textContent = follow.checked ? "" : "paused";
  document.addEventListener("visibilitychange", start);
  window.addEventListener("pagehide", stop);
  start();
})();

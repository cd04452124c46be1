// Keeps what is marked `data-live` up to date by asking for the same page again. Without scripts, reload the page.
"use strict";
(() => {
  const regions = () => [...document.querySelectorAll("[data-live]")];
  if (!regions().length) return;
  const address = new URL(location.href);
  if (address.searchParams.has("done")) {
    address.searchParams.delete("done");
    history.replaceState(null, "", address);
  }
  const pause = Math.max(...regions().map((region) => Number(region.dataset.live || 2))) * 1000;

  const spoken = () => document.querySelector("[data-announce]")?.dataset.announce ?? "";
  let last = spoken();
  let failures = 0;

  const isInUse = (region) => region.querySelector("details[open], select:focus") !== null;
  const keyOf = (element) => element.id || element.getAttribute("href") || element.closest("form")?.getAttribute("action");
  const findAgain = (region, key) =>
    [...region.querySelectorAll("[id], a[href], button, [tabindex]")].find((element) => keyOf(element) === key);

  const replace = (region, fresh) => {
    if (region.innerHTML === fresh.innerHTML || isInUse(region)) return;
    const active = region.contains(document.activeElement) ? document.activeElement : null;
    const key = active && keyOf(active);
    const offsets = [...region.querySelectorAll(".scroll")].map((element) => [element.scrollLeft, element.scrollTop]);
    const wasScroller = active ? [...region.querySelectorAll(".scroll")].indexOf(active) : -1;
    region.replaceChildren(...fresh.childNodes);
    region.querySelectorAll(".scroll").forEach((element, number) => {
      if (offsets[number]) [element.scrollLeft, element.scrollTop] = offsets[number];
    });
    const again = wasScroller >= 0 ? region.querySelectorAll(".scroll")[wasScroller] : key && findAgain(region, key);
    if (again) again.focus({ preventScroll: true });
  };

  const refresh = async () => {
    try {
      const answer = await fetch(address, { cache: "no-store", headers: { Accept: "text/html" } });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const shown = new Set(regions().map((region) => region.id));
      const fresh = [...page.querySelectorAll("[data-live]")];
      if (fresh.some((region) => !shown.has(region.id)) || fresh.length !== shown.size) {
        document.getElementById("main").replaceChildren(...page.getElementById("main").childNodes);
      } else {
        for (const region of fresh) replace(document.getElementById(region.id), region);
      }
      failures = 0;
      if (spoken() !== last) {
        last = spoken();
        document.getElementById("announce").textContent = last;
      }
    } catch {
      failures += 1;
    }
    document.getElementById("lost").hidden = failures < 2;
  };

  const loop = async () => {
    if (!document.hidden) await refresh();
    setTimeout(loop, pause * Math.min(1 + failures, 5));
  };
  setTimeout(loop, pause);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
})();

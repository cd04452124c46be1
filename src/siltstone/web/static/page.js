// Copies lines at a button, and marks tables that have more at their sides. Without scripts, lines can be selected.
"use strict";
(() => {
  const copied = async (source) => {
    try {
      await navigator.clipboard.writeText(source.textContent);
      return true;
    } catch {
      // Only pages at this machine or by HTTPS may write to the clipboard: select the lines, and try it the old way.
      getSelection().selectAllChildren(source);
      return document.execCommand("copy");
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button[data-copies]");
    if (!button) return;
    const isDone = await copied(document.getElementById(button.dataset.copies));
    button.textContent = isDone ? "Copied" : "Selected";
    document.getElementById("announce").textContent = isDone ? "Copied" : "The lines are selected";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  const mark = () => {
    for (const each of document.querySelectorAll(".scroll")) {
      const rest = each.scrollWidth - each.clientWidth - each.scrollLeft;
      each.parentElement.classList.toggle("has-more", rest > 4);
    }
  };
  document.addEventListener("scroll", mark, { capture: true, passive: true });
  addEventListener("resize", mark);
  new MutationObserver(mark).observe(document.getElementById("main"), { childList: true, subtree: true });
  mark();
})();

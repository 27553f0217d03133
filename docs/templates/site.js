// Colours as the system, light or dark; and on a small screen the menu starts folded.
(() => {
  const names = ["system", "light", "dark"];
  let at = 0;
  try { at = Math.max(0, names.indexOf(localStorage.getItem("colours"))); } catch { /* some browsers keep nothing for files */ }
  const show = () => {
    if (at) document.documentElement.dataset.theme = names[at];
    else delete document.documentElement.dataset.theme;
  };
  show();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.textContent = `Colours: ${names[at]}`;
    button.addEventListener("click", () => {
      at = (at + 1) % names.length;
      show();
      button.textContent = `Colours: ${names[at]}`;
      try { localStorage.setItem("colours", names[at]); } catch { /* as above */ }
    });
    if (matchMedia("(max-width: 54rem)").matches) document.getElementById("menu").open = false;
  });
})();

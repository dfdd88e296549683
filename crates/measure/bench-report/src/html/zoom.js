for (const figure of document.querySelectorAll("figure")) {
  const map = figure.querySelector(".map"), zoom = figure.querySelector("input"), told = figure.querySelector(".told");
  if (!map) continue;
  const lanes = map.firstElementChild;
  figure.querySelector(".zoom").hidden = false;
  const set = (power, x) => {
    zoom.value = power;
    const share = (map.scrollLeft + x) / lanes.offsetWidth;
    lanes.style.width = 2 ** zoom.value * 100 + "%";
    map.scrollLeft = share * lanes.offsetWidth - x;
  };
  zoom.oninput = () => set(zoom.value, map.clientWidth / 2);
  map.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    set(+zoom.value - event.deltaY / 200, event.clientX - map.getBoundingClientRect().left);
  }, { passive: false });
  map.onpointermove = map.onclick = event => { if (event.target.title) told.textContent = event.target.title; };
}

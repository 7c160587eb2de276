// What a reader would see wrongly: a page wider than its screen, text beside the screen that
// nothing scrolls to, and a block that overlaps the next one.
() => {
  const found = [];
  const scrolls = node => {
    for (let at = node; at && at !== document.body; at = at.parentElement)
      if (["auto", "scroll"].includes(getComputedStyle(at).overflowX)) return true;
    return false;
  };
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width + 1)
    found.push("the page is wider than the screen");
  for (const node of document.querySelectorAll(
      "article :is(p, li, h1, h2, h3, td, img, svg, summary, iframe)")) {
    const box = node.getBoundingClientRect();
    if (!box.width || scrolls(node)) continue;
    if (box.left < -1 || box.right > width + 1)
      found.push("beside the screen: " + node.textContent.slice(0, 60));
  }
  for (const node of document.querySelectorAll("article section > *")) {
    if (!node.nextElementSibling) continue;
    const [above, below] = [node, node.nextElementSibling].map(n => n.getBoundingClientRect());
    if (above.height && below.height && above.bottom > below.top + 1)
      found.push("overlaps what follows: " + node.textContent.slice(0, 60));
  }
  return found;
}

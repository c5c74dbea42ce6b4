// Every text that can be seen and stands out from its ground by less than 4.5 : 1 (WCAG 2, relative luminance).
() => {
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return numbers.length > 3 ? numbers : [...numbers, 1];
  };
  const over = (top, below) => top.slice(0, 3).map((value, i) => value * top[3] + below[i] * (1 - top[3]));
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    const tops = [];
    for (let at = element; at; at = at.parentElement) {
      tops.push(parse(getComputedStyle(at).backgroundColor));
      if (tops[tops.length - 1][3] === 1) break;
    }
    let base = tops[tops.length - 1][3] === 1 ? tops.pop().slice(0, 3) : [255, 255, 255];
    for (const top of tops.reverse()) base = over(top, base);
    return base;
  };
  const faint = new Map();
  let count = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const seen = element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
    if (!node.data.trim() || !seen || element.closest(".sr, script, .skip, option")) continue;
    const below = ground(element);
    const pair = [luminance(over(parse(getComputedStyle(element).color), below)), luminance(below)].sort((x, y) => y - x);
    const ratio = (pair[0] + 0.05) / (pair[1] + 0.05);
    count += 1;
    if (ratio < 4.5) faint.set(`${element.tagName}.${element.className}`, `${ratio.toFixed(2)} ${node.data.trim().slice(0, 30)}`);
  }
  return { count, faint: [...faint] };
};

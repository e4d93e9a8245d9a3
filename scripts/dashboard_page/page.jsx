// Draws one dashboard with Grafana's own panel components from what Prometheus answered: a picture without a Grafana server.
// `window.SHOWN`: {dashboard, from, to (Unix ms), panels: {title: [{target, result}]}}, `result` as Prometheus gives a range.

import {
  FieldColorModeId, FieldType, ThemeContext, createTheme, dateTime, fieldMatchers, getDisplayProcessor, getFieldDisplayName,
  toDataFrame,
} from "@grafana/data";
import {
  BigValue, BigValueColorMode, BigValueGraphMode, BigValueTextMode, GlobalStyles, PanelChrome, Table, TimeSeries,
} from "@grafana/ui";
import React from "react";
import { createRoot } from "react-dom/client";
import "uplot/dist/uPlot.min.css";

const CELL = 30, GAP = 8; // of Grafana's grid, px
const theme = createTheme({ colors: { mode: "dark" } });
const { dashboard, from, to, panels } = window.SHOWN;
const timeRange = { from: dateTime(from), to: dateTime(to), raw: { from: "now-1h", to: "now" } };
const DEFAULTS = {
  drawStyle: "line", lineInterpolation: "linear", lineWidth: 1, fillOpacity: 0, gradientMode: "none", showPoints: "auto",
  pointSize: 5, spanNulls: false, barAlignment: 0, stacking: { mode: "none", group: "A" }, axisPlacement: "auto",
  axisLabel: "", scaleDistribution: { type: "linear" }, hideFrom: { tooltip: false, viz: false, legend: false },
  axisColorMode: "text", axisBorderShow: false, axisCenteredZero: false, thresholdsStyle: { mode: "off" },
};

const named = (labels, legend) =>
  legend
    ? legend.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? "")
    : Object.entries(labels).map(([name, value]) => `${name}="${value}"`).join(", ");

/** The frames of a panel, one for each series, with its field options and overrides. */
function framesOf(panel) {
  const { defaults, overrides } = panel.fieldConfig;
  const byDefault = { mode: panel.type === "timeseries" ? FieldColorModeId.PaletteClassic : FieldColorModeId.Thresholds };
  const frames = panels[panel.title].flatMap(({ target, result }) =>
    result.map(({ metric, values }) =>
      toDataFrame({
        refId: target.refId,
        fields: [
          { name: "Time", type: FieldType.time, values: values.map(([at]) => at * 1000), config: {} },
          {
            name: "Value", type: FieldType.number, labels: metric, values: values.map(([, value]) => Number(value)),
            config: {
              thresholds: { mode: "absolute", steps: [{ value: -Infinity, color: "green" }, { value: 80, color: "red" }] },
              color: byDefault, ...defaults, displayNameFromDS: named(metric, target.legendFormat),
              custom: { ...DEFAULTS, ...defaults.custom },
            },
          },
        ],
      })
    )
  );
  frames.forEach((frame, index) => {
    const field = frame.fields[1];
    field.state = { seriesIndex: index };
    field.config.thresholds.steps = field.config.thresholds.steps.map((one) => ({ ...one, value: one.value ?? -Infinity }));
    for (const { matcher, properties } of overrides)
      if (fieldMatchers.get(matcher.id).get(matcher.options)(field, frame, frames))
        for (const { id, value } of properties) field.config[id] = value;
    for (const one of frame.fields) one.display = getDisplayProcessor({ field: one, theme, timeZone: "utc" });
  });
  return frames;
}

function Stat({ frames, width, height }) {
  const field = frames[0]?.fields[1];
  if (!field) return <Empty />;
  const last = field.values[field.values.length - 1];
  return (
    <BigValue
      value={field.display(last)} width={width} height={height} theme={theme} colorMode={BigValueColorMode.Value}
      graphMode={BigValueGraphMode.Area} textMode={BigValueTextMode.Value}
      sparkline={{ x: frames[0].fields[0], y: field, timeRange }}
    />
  );
}

function Series({ frames, width, height }) {
  if (!frames.length) return <Empty />;
  return (
    <TimeSeries
      frames={frames} width={width} height={height} timeRange={timeRange} timeZone="utc" theme={theme}
      legend={{ showLegend: true, displayMode: "list", placement: "bottom", calcs: [] }}
    />
  );
}

/** A row for each series, as the table panel lists instant values. */
function Rows({ panel, frames, width, height }) {
  const labels = [...new Set(frames.flatMap((one) => Object.keys(one.fields[1].labels)))].sort();
  const last = (field) => field.values[field.values.length - 1];
  const organised = panel.transformations.find((one) => one.id === "organize")?.options ?? {};
  const { excludeByName = {}, indexByName = {}, renameByName = {} } = organised;
  const columns = [
    { name: "Time", type: FieldType.time, values: frames.map((one) => last(one.fields[0])) },
    ...labels.map((name) => ({
      name, type: FieldType.string, values: frames.map((one) => one.fields[1].labels[name] ?? ""),
    })),
    { name: "Value", type: FieldType.number, values: frames.map((one) => last(one.fields[1])) },
  ]
    .filter(({ name }) => !excludeByName[name])
    .sort((a, b) => (indexByName[a.name] ?? 99) - (indexByName[b.name] ?? 99));
  const frame = toDataFrame({
    fields: columns.map((one) => ({ ...one, name: renameByName[one.name] ?? one.name, config: { custom: {} } })),
  });
  for (const field of frame.fields) field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
  return <Table data={frame} width={width} height={height} />;
}

/** The state timeline: Grafana has no component of it outside its server, so that these bars are drawn here. */
function Timeline({ frames, width, height }) {
  const span = to - from, rowHeight = Math.min(44, (height - 30) / Math.max(1, frames.length));
  return (
    <svg width={width} height={height}>
      {frames.map((frame, index) => {
        const [time, field] = frame.fields;
        const colour = field.config.color.fixedColor ?? "text";
        const step = time.values.length > 1 ? time.values[1] - time.values[0] : 0;
        return (
          <g key={index} transform={`translate(0, ${index * rowHeight})`}>
            <text x={width * 0.3 - 8} y={rowHeight / 2 + 4} textAnchor="end" fontSize="12" fill={theme.colors.text.primary}>
              {getFieldDisplayName(field, frame, frames)}
            </text>
            {time.values.map((at, one) => (
              <rect
                key={one} x={width * 0.3 + ((at - from) / span) * width * 0.7} y={rowHeight * 0.12} height={rowHeight * 0.76}
                width={(step / span) * width * 0.7 + 1} fill={theme.visualization.getColorByName(colour)}
              />
            ))}
          </g>
        );
      })}
    </svg>
  );
}

const Empty = () => <div style={{ textAlign: "center", paddingTop: 40, color: theme.colors.text.secondary }}>No data</div>;
const KINDS = { stat: Stat, timeseries: Series, table: Rows, "state-timeline": Timeline };

function Board({ width }) {
  const column = (width - GAP) / 24, top = 56;
  const at = ({ x, y, w, h }) => ({
    position: "absolute", left: GAP + x * column, top: top + y * (CELL + GAP), width: w * column - GAP, height: h * (CELL + GAP) - GAP,
  });
  const bottom = Math.max(...dashboard.panels.map(({ gridPos: { y, h } }) => y + h));
  return (
    <div style={{ position: "relative", width, height: top + bottom * (CELL + GAP) + GAP }}>
      <h3 style={{ padding: "16px 16px 0", margin: 0 }}>{dashboard.title}</h3>
      {dashboard.panels.map((panel, index) => {
        const place = at(panel.gridPos);
        if (panel.type === "row")
          return <h5 key={index} style={{ ...place, margin: 0, paddingTop: 6 }}>{panel.title}</h5>;
        const Kind = KINDS[panel.type], frames = framesOf(panel);
        return (
          <div key={index} style={place}>
            <PanelChrome title={panel.title} width={place.width} height={place.height}>
              {(width, height) => <Kind panel={panel} frames={frames} width={width} height={height} />}
            </PanelChrome>
          </div>
        );
      })}
    </div>
  );
}

createRoot(document.getElementById("board")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <Board width={document.body.clientWidth} />
  </ThemeContext.Provider>
);

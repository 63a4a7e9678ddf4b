"""A report in the format of CI servers."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from .report import Report


def junit(report: Report) -> str:
    cells = list(report.cells.values())
    failures = sum(cell.failed > 0 for cell in cells)
    suite = ET.Element("testsuite", name=f"backbay conform {report.backend}", time=f"{report.seconds:.3f}")
    suite.attrib |= {"tests": str(len(cells)), "failures": str(failures + len(report.complaints))}
    suite.attrib |= {"errors": str(int(bool(report.stopped)))}
    for cell in cells:
        name = f"{cell.name}[{cell.dtype}]" if cell.dtype else cell.name
        about = {"classname": cell.profile, "name": name, "time": f"{cell.seconds:.3f}"}
        shown = ET.SubElement(suite, "testcase", about)
        own = [
            o
            for o in report.failures
            if (o.profile, o.name, o.dtype) == (cell.profile, cell.name, cell.dtype)
        ]
        for outcome in own[:1]:
            text = f"{outcome.call}\n{outcome.message}\n{outcome.script}"
            failure = ET.SubElement(
                shown, "failure", message=f"{outcome.check}: {len(own)} calls, first {outcome.item}"
            )
            failure.text = "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
        if cell.state == "unsupported":
            ET.SubElement(shown, "skipped", message="the backend declares that it does not run this")
    if report.stopped:
        shown = ET.SubElement(suite, "testcase", classname="run", name="the whole run")
        ET.SubElement(shown, "error", message=report.ending)
    for complaint in report.complaints:
        shown = ET.SubElement(suite, "testcase", classname="known failures", name=complaint)
        ET.SubElement(shown, "failure", message=complaint)
    ET.indent(suite)
    return ET.tostring(suite, "unicode", xml_declaration=True) + "\n"

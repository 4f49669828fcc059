"""The synthesizer: which combination of parts would do best from here on? Every candidate is simulated forward from the present
state with the engine itself, and the best decides until the next look (Blox §5.2)."""

from fairlead.study.synthesizer.advisor import Advice, Advisor
from fairlead.study.synthesizer.candidates import combinations
from fairlead.study.synthesizer.forecast import Forecast
from fairlead.study.synthesizer.outlook import Outlook, Wanted

__all__ = ["Advice", "Advisor", "Forecast", "Outlook", "Wanted", "combinations"]

"""The synthesizer: which combination of parts would do best from here on? Every candidate is simulated forward from the present
state with the engine itself, and the best decides until the next look (Blox §5.2)."""

from fairlead.experiments.synthesizer.advisor import Advice, Advisor, combinations
from fairlead.experiments.synthesizer.arrivals import Forecast
from fairlead.experiments.synthesizer.outlook import CandidateForecast, Objective

__all__ = ["Advice", "Advisor", "CandidateForecast", "Forecast", "Objective", "combinations"]

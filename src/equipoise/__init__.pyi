from .case import Bundle as Bundle
from .case import Case as Case
from .case import check_scores as check_scores
from .comparison import Comparison as Comparison
from .comparison import audit as audit
from .comparison import compare as compare
from .data import Cohort as Cohort
from .data import Parts as Parts
from .data import Scores as Scores
from .data import scan as scan
from .data import split as split
from .errors import BadInput as BadInput
from .errors import EquipoiseError as EquipoiseError
from .measures import Audit as Audit
from .measures import history as history
from .measures import plan as plan
from .measures import read_audit as read_audit
from .methods import Candidate as Candidate
from .methods import Goal as Goal
from .methods import debias as debias
from .models import Training as Training
from .models import predictor as predictor
from .models import train as train
from .studies import load as load

__version__: str
